# SPDX-License-Identifier: Apache-2.0
"""Decode seeding on recorded agent sessions: what it can cover, what the real parts cover, and that ids never differ.

Coverage: the share of the decode lookups of a turn whose row was looked up before, in the prompt alone (everything in
front of the turn) or also in the turn's own earlier tokens. Each turn is a request of its own with an empty cache.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from slacktier.page import RowFormat, State, Superblock
from slacktier_cli.characterize.lookups import LayerHash
from slacktier_cli.characterize.sampling import Sampling
from slacktier_cli.traces import Session, Trace
from slacktier_native.core import LayerSetup, LookupCore, PatternSource
from slacktier_native.pages import pattern_check
from slacktier_rowids.models import Hasher, load_config, load_hasher
from slacktier_seeding.seeder import SeedAddress, Seeder
from slacktier_seeding.server import SeedServer
from slacktier_seeding.store import SeedStore

TOKEN = b"0123456789abcdef0123456789abcdef"
LAYER, SEED, CHUNK = 14, 114, 8192


@pytest.fixture(scope="module")
def hasher() -> Hasher:
    return load_hasher(load_config("v41"))


@pytest.fixture(scope="module")
def sessions(traces_dir: Path) -> Trace:
    return Trace.load(traces_dir / "agent.npz").of_sources(["mini-swe-agent"])


def first_use(rows: np.ndarray) -> np.ndarray:
    """Position at which each lookup's row is first looked up; rows [T, C] of one session."""
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return (first // rows.shape[1])[inverse].reshape(rows.shape)


def simulated(session: Session, rows: np.ndarray) -> np.ndarray:
    """Decode lookups, those that the prompt covers, and those that prompt and own tokens cover."""
    used, start = first_use(rows), session.turns[0].start
    counts = np.zeros(3, np.int64)
    for turn in session.turns:
        if turn.is_decode:
            first, end = turn.start - start, turn.start - start + len(turn.tokens)
            own = used[first:end] < np.arange(first, end)[:, None]
            counts += own.size, int((used[first:end] < first).sum()), int(own.sum())
    return counts


def test_prompts_cover_more_than_half_of_the_decode_lookups(hasher: Hasher, sessions: Trace) -> None:
    layer = LayerHash(hasher, LAYER, Sampling.at(Fraction(1, 8), 8))
    total = np.zeros(3, np.int64)
    for session in sessions.sessions():
        total += simulated(session, layer.row_ids(session.tokens, np.array([0, len(session.tokens)])))
    print(f"prompt only {total[1] / total[0]:.4f}, with own decode rows {total[2] / total[0]:.4f}")
    assert total[1] / total[0] == pytest.approx(0.58, abs=0.02)
    assert total[2] / total[0] == pytest.approx(0.64, abs=0.02)


def superblock(row_count: int) -> Superblock:
    sb = Superblock(
        table_uuid=uuid.UUID(int=7), layer_id=LAYER, epoch=1, row_count=row_count, payload_bytes=256, scale_bytes=8,
        row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="test", revision="", source="pattern",
    )  # fmt: skip
    return sb.with_state(State.COMPLETE, staged_pages=sb.page_count, source_digest=bytes(32))


def rows_of(core: LookupCore, ids: np.ndarray) -> tuple[int, np.ndarray]:
    """One step: how many lookups missed, and the rows, which must be the table's."""
    core.begin([ids])
    result = core.wait(0)
    rows = np.empty((ids.size, core.row_bytes(0)), np.uint8)
    core.gather(0, rows)
    core.end()
    assert pattern_check(SEED, ids, rows, 256, 8) == (0, -1)
    return result.misses, rows


def requests(session: Session) -> Iterator[tuple[int, int]]:
    start = session.turns[0].start
    return ((t.start - start, t.start - start + len(t.tokens)) for t in session.turns if t.is_decode)


def serve(
    session: Session, row_ids: np.ndarray, sb: Superblock, *, seeded: bool, turns_max: int
) -> tuple[np.ndarray, int]:
    """Prefill and decode of a session's first turns on two instances.

    returns  decode lookups and those that did not miss, of all steps; misses of the turns' first steps
    """
    setup = LayerSetup(LAYER, (PatternSource(sb, SEED),), cache_rows=400_000)
    counts, first_misses = np.zeros(2, np.int64), 0
    with ExitStack() as opened:
        prefill, decode = (opened.enter_context(LookupCore([setup])) for _ in range(2))
        store = SeedStore({LAYER: sb}, bytes_max=1 << 28, keep_s=60.0)
        server = opened.enter_context(SeedServer(store, TOKEN))
        seeder = Seeder(decode, limit_s=20.0)
        opened.callback(seeder.close)
        for room, (first, end) in enumerate(list(requests(session))[:turns_max]):
            decode.drop_cache(0)
            for at in range(0, first if seeded else 0, CHUNK):
                ids = row_ids[at : min(first, at + CHUNK)].ravel()
                store.keep(room, LAYER, ids, rows_of(prefill, ids)[1])
            if seeded:
                prompt = row_ids[:first].ravel()
                assert seeder.fill(seeder.pull(SeedAddress(*server.address, TOKEN), room, [prompt])) > 0
            for at in range(first, end):
                misses, _ = rows_of(decode, row_ids[at])
                counts += row_ids[at].size, row_ids[at].size - misses
                first_misses += misses if at == first else 0
    return counts, first_misses


def test_two_instances_reach_what_the_simulation_says(hasher: Hasher, sessions: Trace) -> None:
    """A session's first turns, in a whole V4.1 table: at least 95 % of the simulation's coverage."""
    session = min(sessions.sessions(), key=lambda s: len(s.tokens))
    row_ids = np.ascontiguousarray(hasher.sequence(session.tokens.astype(np.int64))[:, 1])
    turns_max = 6
    turns = [t for t in session.turns if t.is_decode][:turns_max]
    cut = turns[-1].start - session.turns[0].start + len(turns[-1].tokens)
    used = first_use(row_ids[:cut])
    expected = sum(
        int((used[first:end] < np.arange(first, end)[:, None]).sum())
        for first, end in list(requests(session))[:turns_max]
    )
    sb = superblock(int(hasher.layout.row_counts[1]))
    (lookups, hits), first_misses = serve(session, row_ids, sb, seeded=True, turns_max=turns_max)
    (_, unseeded_hits), unseeded_first = serve(session, row_ids, sb, seeded=False, turns_max=turns_max)
    print(f"coverage {hits / lookups:.3f}, simulated {expected / lookups:.3f}, unseeded {unseeded_hits / lookups:.3f}; "
          f"first-step misses {first_misses}, unseeded {unseeded_first}")  # fmt: skip
    assert hits >= 0.95 * expected
    assert first_misses < 0.7 * unseeded_first
    assert unseeded_hits < 0.5 * hits


@pytest.mark.parametrize("index", [0, 100, 200])
def test_row_ids_are_the_same_however_a_session_is_cut(hasher: Hasher, sessions: Trace, index: int) -> None:
    """Colocated in one go; chunks; a prefix hit; and a decode instance that knows the prompt and steps from there."""
    tokens = sessions.session(index).tokens.astype(np.int64)[:9000]
    whole = hasher.sequence(tokens)
    lookback = hasher.ngram_size - 1
    for chunk in (1, 7, 512, CHUNK):
        span = tokens[: 300 if chunk == 1 else len(tokens)]
        cuts = [
            hasher.sequence(span[at : at + chunk], history=span[max(0, at - lookback) : at])
            for at in range(0, len(span), chunk)
        ]
        assert np.array_equal(np.concatenate(cuts), whole[: len(span)])
    for hit in (16, 4096):
        assert np.array_equal(hasher.sequence(tokens[hit:], history=tokens[:hit]), whole[hit:])
    prompt = len(tokens) // 2
    assert np.array_equal(hasher.sequence(tokens[:prompt]), whole[:prompt])
    for at in range(prompt, prompt + 200):
        assert np.array_equal(hasher.step(hasher.window(tokens[: at + 1])[None])[0], whole[at])
