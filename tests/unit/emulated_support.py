# SPDX-License-Identifier: Apache-2.0
"""What the tests of the emulated engine share: a small model, its tables on disk, a virtual clock, a scripted core."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slacktier.errors import SlackTierError
from slacktier.page import PAGE_BYTES, RowFormat, State, Superblock, encode_superblock
from slacktier.pattern import pattern_seed, source_text
from slacktier.tiers import Tier
from slacktier_emulated.channel import Submit
from slacktier_emulated.clock import Clock
from slacktier_emulated.engine import Engine
from slacktier_emulated.engine_process import layer_states
from slacktier_emulated.layers import LayerPlan, Source
from slacktier_emulated.prefix_cache import PrefixCache
from slacktier_emulated.profile import Point, Prefill, Profile
from slacktier_emulated.scheduler import Scheduler
from slacktier_emulated.settings import EngineSettings
from slacktier_emulated.text import Turn
from slacktier_native.pages import PageCodec, pattern_fill
from slacktier_rowids.engram import EngramHasher, EngramLayout, scaled_config

Ids = npt.NDArray[np.int64]
SEED = 7
VOCABULARY = 512
BOS, EOS, USER, ASSISTANT = 0, 1, 300, 301
SPECIAL_FIRST = 300
_FIRST_BYTE = 3

MODEL_CONFIG: dict[str, Any] = scaled_config(
    {
        "vocab_size": VOCABULARY, "engram_layer_ids": [1, 14], "engram_max_ngram_size": 4, "engram_n_heads": 8,
        "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": VOCABULARY,
    },
    101,
)  # fmt: skip
LAYOUT = EngramLayout.from_config(MODEL_CONFIG)
HASHER = EngramHasher(LAYOUT, np.arange(VOCABULARY))

# Quick enough for tests, slow enough to be told from an engine that does not wait.
PROFILE = Profile(
    name="quick", model="tiny", source="made for tests", layer_count=40, tp=4,
    points=(Point(sessions=1, step_ms=2.0, windows_ms={1: 0.1, 14: 0.5}),),
    prefill=Prefill(chunk_tokens=64, us_per_token=1.0, step_ms_min=0.5, source="made for tests"),
)  # fmt: skip


class ByteCodec:
    """One token per byte: what a tokenizer is to the server, without loading one."""

    bos_id = BOS
    vocab_size = VOCABULARY

    def encode(self, text: str) -> list[int]:
        return [byte + _FIRST_BYTE for byte in text.encode()]

    def token_bytes(self, token: int) -> bytes:
        is_byte = _FIRST_BYTE <= token < _FIRST_BYTE + 256
        return bytes([token - _FIRST_BYTE]) if is_byte else f"<{token}>".encode()

    def encode_chat(self, turns: Iterable[Turn]) -> list[int]:
        ids = [BOS]
        for turn in turns:
            ids += [ASSISTANT if turn.role == "assistant" else USER, *self.encode(turn.text)]
        return [*ids, ASSISTANT]


def write_tables(
    directory: Path, *, layout: EngramLayout = LAYOUT, seed: int = SEED, state: State = State.COMPLETE
) -> dict[int, Path]:
    """Both layers' regions with rows of the test pattern."""
    paths = {}
    for layer_id, row_count in zip(layout.layer_ids, layout.row_counts, strict=True):
        sb = Superblock(
            table_uuid=uuid.UUID(int=seed), layer_id=layer_id, epoch=1, row_count=row_count, payload_bytes=256,
            scale_bytes=8, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="tiny", revision="",
            source=source_text("tests", seed),
        )  # fmt: skip
        sb = replace(sb, state=state, staged_pages=sb.page_count if state is State.COMPLETE else 1)
        weights, scales = np.empty((row_count, 256), np.uint8), np.empty((row_count, 8), np.uint8)
        pattern_fill(pattern_seed(seed, layer_id), 0, row_count, 256, 8, weights, scales)
        pages = np.empty(sb.page_count * PAGE_BYTES, np.uint8)
        PageCodec(sb).encode(0, sb.page_count, weights, scales, pages)
        paths[layer_id] = directory / f"layer{layer_id}.region"
        paths[layer_id].write_bytes(encode_superblock(sb) * 2 + pages.tobytes())
    return paths


def engine_settings(paths: dict[int, Path], **changes: Any) -> EngineSettings:
    plans = tuple(LayerPlan(layer_id, (Source(Tier.NVME, (path,)),)) for layer_id, path in paths.items())
    filler = tuple(ByteCodec().encode("the quick brown fox jumps over the lazy dog and runs on through the field. "))
    settings = EngineSettings(
        layers=plans, profile=PROFILE, model_config=MODEL_CONFIG, rank=0, tp=1, filler=filler, eos_id=EOS,
        special_first=SPECIAL_FIRST, running_max=8,
    )  # fmt: skip
    return replace(settings, **changes)


class VirtualClock(Clock):
    """Time passes only by sleeping, by `spend`, and by what wakes late."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000
        self.wakes_late_us = 0.0

    def now_ns(self) -> int:
        return self.ns

    def sleep_until(self, until_ns: int) -> None:
        if until_ns > self.ns:
            self.ns = until_ns + int(self.wakes_late_us * 1000)

    def spend(self, us: float) -> None:
        self.ns += int(us * 1000)


@dataclass(frozen=True, slots=True)
class ScriptedOutcome:
    """What one layer of one step did."""

    owned: int
    hits: int
    repeats: int
    misses: int
    pages: int
    read_us: float
    arrived_us: float


@dataclass(slots=True)
class ScriptedCore:
    """A core in memory: rows of the test pattern, arrival times and faults as the test says, all calls written down.

    arrivals_us  per layer: from begin() until the rows are there
    faults       per layer: raised by wait() while set
    wrong_row    index of a row that gather() gets wrong; switch_us: what set_sources() takes
    ids          of the last step
    """

    clock: VirtualClock
    arrivals_us: list[float] = field(default_factory=lambda: [0.0, 0.0])
    faults: dict[int, SlackTierError] = field(default_factory=dict)
    refuses_sources: dict[int, SlackTierError] = field(default_factory=dict)
    wrong_row: int | None = None
    switch_us: float = 0.0
    calls: list[str] = field(default_factory=list)
    backend: str = "scripted"
    backend_reason: str = ""
    on_call: Callable[[str], None] | None = None
    ids: list[Ids] = field(default_factory=list)
    _begin_ns: int = 0

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.on_call is not None:
            self.on_call(call)

    def begin(self, row_ids: Sequence[Ids]) -> None:
        self._note("begin")
        self.ids = [ids.copy() for ids in row_ids]
        self._begin_ns = self.clock.now_ns()

    def wait(self, layer_index: int) -> ScriptedOutcome:
        self._note(f"wait {layer_index}")
        if layer_index in self.faults:
            raise self.faults[layer_index]
        arrived_us = self.arrivals_us[layer_index]
        self.clock.ns = max(self.clock.ns, self._begin_ns + int(arrived_us * 1000))
        owned = self.ids[layer_index].size
        return ScriptedOutcome(owned, 0, 0, owned, owned, arrived_us, arrived_us)

    def gather(self, layer_index: int, out: npt.NDArray[np.uint8]) -> None:
        self._note(f"gather {layer_index}")
        seed = pattern_seed(SEED, LAYOUT.layer_ids[layer_index])
        for row_id, row in zip(self.ids[layer_index], out, strict=True):
            pattern_fill(seed, int(row_id), 1, 256, 8, row[:256], row[256:])
        if self.wrong_row is not None:
            out[self.wrong_row, 0] ^= 1

    def end(self) -> None:
        self._note("end")

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        self._note(f"cache {layer_index} {rows}")

    is_polled = False

    def set_host_cache(self, layer_index: int, byte_count: int) -> None:
        self._note(f"host cache {layer_index} {byte_count}")

    def set_sources(self, layer_index: int, specs: Sequence[Any]) -> None:
        self._note(f"sources {layer_index} {','.join(source.tier for source in specs)}")
        self.clock.spend(self.switch_us)
        if layer_index in self.refuses_sources:
            raise self.refuses_sources[layer_index]

    def stats(self) -> dict[int, dict[str, int]]:
        counts = {"evictions": 0, "retries": 0, "bad_records": 0, "fallback_rows": 0, "host_hits": 0}
        return {layer_id: dict(counts) for layer_id in LAYOUT.layer_ids}

    def close(self) -> None:
        self._note("close")


def scripted_engine(core: ScriptedCore, paths: dict[int, Path], **options: Any) -> Engine:
    """An engine over a scripted core; the regions are only what its control calls check."""
    settings = engine_settings(paths)
    scheduler = Scheduler(
        running_max=settings.running_max, chunk_tokens=PROFILE.prefill.chunk_tokens, ngram_size=HASHER.ngram_size,
        cache=PrefixCache(10_000),
    )  # fmt: skip
    return Engine(
        settings, core, HASHER, layer_states(settings, HASHER), scheduler=scheduler, clock=core.clock,
        make_spec=lambda source, layer_id: source, **options,
    )  # fmt: skip


def submission(request_id: int, *, prompt: int = 10, answer: int = 5, seed: int = 0) -> Submit:
    """A request whose prompt and recorded answer follow from its id."""
    draw = np.random.default_rng([request_id, seed])
    tokens = draw.integers(3, SPECIAL_FIRST, prompt + answer).astype(np.uint32)
    return Submit(request_id, tokens[:prompt], tokens[prompt:], answer, True, seed)
