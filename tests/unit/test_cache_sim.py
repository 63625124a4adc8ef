# SPDX-License-Identifier: Apache-2.0
"""The native simulators against plain ones that keep every queue as a list."""

from __future__ import annotations

import itertools
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktier.cache_policy import CachePolicy
from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, RowFormat, State, Superblock, encode_superblock
from slacktier.tiers import Tier
from slacktier_cli.characterize.sampling import mix32
from slacktier_native.cache_sim import CLASSES, Phase, RowIndex, Stream
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_native.pages import PageCodec

KEYS = 40


@dataclass(frozen=True)
class Case:
    """A stream and what it means, token by token."""

    stream: Stream
    lookups: list[tuple[int, bool]]  # (key, decoded) in order of use
    tokens: list[list[int]]  # keys of each position
    decode: list[bool]  # of each position


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Positions with 0 to 5 keys, used in any order, some twice; some keys skipped."""
    # Squaring makes low keys common, so that caches of a few rows see hits.
    key = st.integers(0, 99).map(lambda x: x * x * KEYS // 10_000)
    tokens = draw(st.lists(st.lists(key, max_size=5), min_size=1, max_size=60))
    decode = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    order = draw(st.lists(st.integers(0, len(tokens) - 1), max_size=150))
    skip = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=KEYS, max_size=KEYS)))
    stream = Stream(
        order=np.array(order, np.uint32),
        first=np.concatenate([[0], np.cumsum([len(keys) for keys in tokens])]).astype(np.uint64),
        keys=np.array([k for keys in tokens for k in keys], np.uint32),
        decode=np.array(decode, np.uint8),
        class_of=(np.arange(KEYS) % 3).astype(np.uint8),
        skip=None if skip is None else np.array(skip, np.uint8),
    )
    skipped = set() if skip is None else {k for k in range(KEYS) if skip[k]}
    lookups = [(k, decode[p]) for p in order for k in tokens[p] if k not in skipped]
    return Case(stream, lookups, tokens, decode)


def misses_of(case: Case, is_hit: Callable[[int], bool]) -> list[list[int]]:
    misses = [[0] * CLASSES, [0] * CLASSES]
    for key, decoded in case.lookups:
        if not is_hit(key):
            misses[decoded][key % 3] += 1
    return misses


def plain_lru(rows: int) -> Callable[[int], bool]:
    cached: OrderedDict[int, None] = OrderedDict()

    def is_hit(key: int) -> bool:
        hit = key in cached
        cached[key] = None
        cached.move_to_end(key)
        if len(cached) > rows:
            cached.popitem(last=False)
        return hit

    return is_hit


def plain_clock(rows: int) -> Callable[[int], bool]:
    """The ring as a queue: the hand is its left end."""
    ring: deque[int] = deque()
    used: set[int] = set()

    def is_hit(key: int) -> bool:
        if key in ring:
            used.add(key)
            return True
        if len(ring) == rows:
            while ring[0] in used:
                used.remove(ring[0])
                ring.rotate(-1)
            ring.popleft()
        ring.append(key)
        return False

    return is_hit


def plain_s3fifo(rows: int) -> Callable[[int], bool]:
    small: deque[int] = deque()
    main: deque[int] = deque()
    hits: dict[int, int] = {}
    main_rows = rows - max(rows // 10, 1)
    ghosts: list[int] = []  # every row that left small unused, oldest first

    def evict() -> None:
        while True:
            if len(main) > main_rows or not small:
                key = main.popleft()
                if hits[key] == 0:
                    del hits[key]
                    return
                hits[key] -= 1
                main.append(key)
            else:
                key = small.popleft()
                if hits[key] < 2:
                    del hits[key]
                    ghosts.append(key)
                    return
                hits[key] = 0
                main.append(key)

    def is_hit(key: int) -> bool:
        if key in hits:
            hits[key] = min(hits[key] + 1, 3)
            return True
        remembered = key in ghosts[max(len(ghosts) - main_rows, 0) :]
        if len(hits) == rows:
            evict()
        for at in [at for at, ghost in enumerate(ghosts) if ghost == key]:
            ghosts[at] = -1
        hits[key] = 0
        (main if remembered else small).append(key)
        return False

    return is_hit


def set_s3fifo() -> Callable[[int], bool]:
    """One set of 16 ways: a way is [row, used, is small]; each queue is the ways in order, from its own hand on."""
    ways: list[list[int]] = []
    ghosts: deque[int] = deque(maxlen=8)
    hands = {False: 0, True: 0}

    def next_of(is_small: bool) -> int:
        at = next(i % 16 for i in range(hands[is_small], hands[is_small] + 16) if ways[i % 16][2] == is_small)
        hands[is_small] = (at + 1) % 16
        return at

    def evict() -> int:
        while sum(way[2] for way in ways) >= 4:
            at = next_of(True)
            if not ways[at][1]:
                ghosts.append(ghost_of(ways[at][0]))
                return at
            ways[at][1:] = [0, 0]
        while ways[at := next_of(False)][1]:
            ways[at][1] = 0
        return at

    def is_hit(row: int) -> bool:
        for way in ways:
            if way[0] == row:
                way[1] = 1
                return True
        is_new = ghost_of(row) not in [*ghosts, *[0] * (8 - len(ghosts))]  # not filled yet: zeros
        if len(ways) < 16:
            ways.append([row, 0, int(is_new)])
        else:
            ways[evict()] = [row, 0, int(is_new)]
        return False

    return is_hit


def ghost_of(row: int) -> int:
    return row * 0x9E3779B1 % 2**32 >> 24


def plain_directory(rows: int, row_of: list[int], policy: CachePolicy) -> Callable[[int], bool]:
    set_count = -(-rows // 16)
    sets = [set_s3fifo() if policy is CachePolicy.S3FIFO else plain_clock(16) for _ in range(set_count)]
    hash_of = mix32(np.array(row_of, np.uint32)).tolist()
    return lambda key: sets[hash_of[key] * set_count // 2**32](row_of[key])


@settings(max_examples=40)
@given(cases(), st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True))
def test_lru_in_one_pass_equals_one_lru_per_size(case: Case, sizes: list[int]) -> None:
    found = case.stream.lru(sorted(sizes))
    assert found.tolist() == [misses_of(case, plain_lru(rows)) for rows in sorted(sizes)]


@settings(max_examples=40)
@given(cases(), st.integers(1, 50))
def test_clock_equals_a_ring_kept_as_a_queue(case: Case, rows: int) -> None:
    assert case.stream.clock(rows).tolist() == misses_of(case, plain_clock(rows))


@settings(max_examples=40)
@given(cases(), st.integers(1, 50))
def test_s3fifo_equals_queues_kept_as_lists(case: Case, rows: int) -> None:
    assert case.stream.s3fifo(rows).tolist() == misses_of(case, plain_s3fifo(rows))


@settings(max_examples=80)
@given(
    cases(), st.integers(1, 80), st.sampled_from(CachePolicy),
    st.lists(st.integers(0, 2**32 - 2), min_size=KEYS, max_size=KEYS, unique=True),
)  # fmt: skip
def test_the_directory_equals_one_small_cache_per_set(
    case: Case, rows: int, policy: CachePolicy, row_of: list[int]
) -> None:
    found = case.stream.directory(rows, np.array(row_of, np.uint32), policy)
    assert found.tolist() == misses_of(case, plain_directory(rows, row_of, policy))


@settings(max_examples=40)
@given(cases(), st.sampled_from(Phase), st.booleans(), st.data())
def test_distinct_rows_and_pages_of_ranges(case: Case, phase: Phase, by_page: bool, data: st.DataObject) -> None:
    order = case.stream.order.tolist()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), min_size=1, max_size=6)))
    group_of = [key // 4 for key in range(KEYS)] if by_page else list(range(KEYS))
    lookups, distinct = case.stream.distinct(np.array(cuts), phase, np.array(group_of, np.uint32) if by_page else None)
    counted = {Phase.ALL: (True, False), Phase.DECODE: (True,), Phase.PREFILL: (False,)}[phase]
    skip = case.stream.skip
    for at, (first, end) in enumerate(itertools.pairwise(cuts)):
        keys = [k for p in order[first:end] if case.decode[p] in counted for k in case.tokens[p]]
        keys = [k for k in keys if skip is None or not skip[k]]
        assert (lookups[at], distinct[at]) == (len(keys), len({group_of[k] for k in keys}))


@settings(max_examples=40)
@given(cases(), st.sampled_from(Phase))
def test_counts_by_row(case: Case, phase: Phase) -> None:
    counted = {Phase.ALL: (True, False), Phase.DECODE: (True,), Phase.PREFILL: (False,)}[phase]
    expected = [sum(k == key and d in counted for k, d in case.lookups) for key in range(KEYS)]
    assert case.stream.counts(phase).tolist() == expected


def naive_handoff(case: Case, sessions: list[int], turn_start: list[int]) -> Iterator[tuple[int, list[bool]]]:
    """(key, [any, in prompt, in session, first turn, first turn and in prompt]) of each decode lookup."""
    for start, end in itertools.pairwise(sessions):
        decoded = [p for p in range(start, end) if case.decode[p]]
        for position in decoded:
            prompt = {k for p in range(start, turn_start[position]) for k in case.tokens[p]}
            before = {k for p in range(start, position) for k in case.tokens[p]}
            first = turn_start[position] == turn_start[decoded[0]]
            for key in case.tokens[position]:
                yield key, [True, key in prompt, key in before, first, first and key in prompt]


@settings(max_examples=40)
@given(cases(), st.data())
def test_reuse_within_sessions(case: Case, data: st.DataObject) -> None:
    stream = replace(case.stream, skip=None)
    count = len(case.decode)
    sessions = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=3))), count]
    turn_start = [
        max(p for p in range(at + 1) if p == 0 or p in sessions or case.decode[p] != case.decode[p - 1])
        for at in range(count)
    ]
    found = stream.handoff(np.array(sessions, np.int64), np.array(turn_start, np.uint32))
    expected = np.zeros((5, CLASSES), int)
    for key, seen in naive_handoff(case, sessions, turn_start):
        expected[:, key % 3] += seen
    got = (found.lookups, found.prompt, found.session, found.first_lookups, found.first_prompt)
    assert [counts.tolist() for counts in got] == expected.tolist()


def test_row_index_numbers_rows_as_they_come_and_survives_growth() -> None:
    row_ids = np.random.default_rng(5).integers(0, 2**32, 200_000, dtype=np.uint32)
    row_ids = np.concatenate([row_ids, row_ids[::3], [np.uint32(2**32 - 1), np.uint32(0)]])
    with RowIndex() as index:
        keys = np.concatenate([index.add(part) for part in np.array_split(row_ids, 7)])
        rows = index.rows()
    assert (rows[keys] == row_ids).all()
    assert len(rows) == len(np.unique(row_ids))
    firsts = np.unique(keys, return_index=True)[1]
    assert (np.diff(firsts) > 0).all()


def test_stream_that_would_read_outside_its_arrays_is_refused() -> None:
    good = Stream(
        order=np.zeros(1, np.uint32), first=np.array([0, 1], np.uint64), keys=np.zeros(1, np.uint32),
        decode=np.ones(1, np.uint8), class_of=np.zeros(1, np.uint8),
    )  # fmt: skip
    bad = {
        "order": np.ones(1, np.uint32),
        "keys": np.ones(1, np.uint32),
        "first": np.array([0, 2], np.uint64),
        "class_of": np.full(1, CLASSES, np.uint8),
        "skip": np.zeros(2, np.uint8),
    }
    for name, array in bad.items():
        with pytest.raises(ConfigError, match=f"stream: {name}"):
            replace(good, **{name: array})
    with pytest.raises(ConfigError, match="order is int64, expected contiguous uint32"):
        replace(good, order=np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match="cache sizes"):
        good.lru([5, 5])


@pytest.mark.parametrize("policy", CachePolicy)
def test_what_is_simulated_is_what_a_core_does(tmp_path: Path, policy: CachePolicy) -> None:
    """Goal: the policy that is simulated is the one that serves. Method: one lookup per step through a real core, so
    that no row is pinned by another lookup of its step; misses are compared with the simulator's."""
    sb = Superblock(
        table_uuid=uuid.UUID(int=7), layer_id=1, epoch=1, row_count=900, payload_bytes=16, scale_bytes=0,
        row_format=RowFormat.FP8_E4M3, model="test", revision="", source="pattern",
    )  # fmt: skip
    sb = replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)
    pages = np.empty(sb.page_count * PAGE_BYTES, np.uint8)
    PageCodec(sb).encode(0, sb.page_count, np.zeros((900, 16), np.uint8), None, pages)
    region = tmp_path / "layer1.region"
    region.write_bytes(encode_superblock(sb) * 2 + pages.tobytes())
    rows = (np.random.default_rng(2).random(3000) ** 3 * 900).astype(np.int64)
    misses = 0
    setup = LayerSetup(1, (SourceSpec(Tier.DRAM, (region,)),), cache_rows=160, cache_policy=policy)
    with LookupCore([setup], lookups_max=16) as core:
        for row in rows:
            core.begin([row[None]])
            misses += core.wait(0).misses
            core.end()
    stream = Stream(
        order=np.arange(len(rows), dtype=np.uint32), first=np.arange(len(rows) + 1, dtype=np.uint64),
        keys=rows.astype(np.uint32), decode=np.ones(len(rows), np.uint8), class_of=np.zeros(900, np.uint8),
    )  # fmt: skip
    assert int(stream.directory(160, np.arange(900, dtype=np.uint32), policy).sum()) == misses
    assert 900 < misses < 2500
