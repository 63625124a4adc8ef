# SPDX-License-Identifier: Apache-2.0
"""Measures how a place answers a step's reads under load: the samples that a read model is fitted to.

Each step reads two groups of distinct random pages, the second submitted right behind the first, as a decode step does
for two layers; with several ranks all of them read at the same moment. Nothing is cached, and every record is checked,
so the times are those that serving would see.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier.window_fit import ReadSample
from slacktier_native.core import LayerSetup, LookupCore, RowIds
from slacktier_native.sources import RemoteSpec, SourceSpec

REMOTE_BACKENDS: Final = {Tier.TCP: "rows", Tier.RDMA: "verbs"}
PAGES: Final = (25, 100, 300, 700)
STEPS_PER_VISIT: Final = 10
_BARRIER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """Pages of one rank in a step: of the layer submitted first and of the one behind it."""

    first: int
    behind: int


@dataclass(slots=True)
class _Times:
    """Read times of one load in us, slowest rank of each step, first and second layer."""

    first_us: list[float] = field(default_factory=list)
    behind_us: list[float] = field(default_factory=list)


def loads_of(pages: Sequence[int]) -> list[Load]:
    """Each page count alone, with as many pages behind it, and with the most behind it."""
    most = max(pages)
    return sorted({Load(first, behind) for first in pages for behind in (0, first, most)}, key=_order)


def _order(load: Load) -> tuple[int, int]:
    return load.first, load.behind


class Reader(Protocol):
    """One rank's way to read a step's pages: two groups, the second submitted behind the first."""

    label: str
    backend: str
    page_count: int
    rows_per_page: int

    def read(self, first: RowIds, behind: RowIds) -> tuple[float, float]:
        """Microseconds until each group's rows were there and checked; 0 for an empty group."""

    def close(self) -> None: ...


class CoreReader:
    """Through the lookup core, as serving reads: the same table as two layers without a cache."""

    def __init__(self, spec: SourceSpec | RemoteSpec, layer_id: int, *, pages_max: int, backend: str = "auto") -> None:
        layers = [LayerSetup(layer_id, (spec,)), LayerSetup(layer_id, (spec,))]
        self._core = LookupCore(layers, lookups_max=max(1024, pages_max), backend=backend)
        self.label = spec.label
        self.backend = REMOTE_BACKENDS.get(spec.tier, self._core.backend)
        sb = self._core.superblock(0)
        self.page_count, self.rows_per_page = sb.page_count, sb.rows_per_page

    def read(self, first: RowIds, behind: RowIds) -> tuple[float, float]:
        self._core.begin([first, behind])
        results = self._core.wait(0), self._core.wait(1)
        self._core.end()
        return results[0].read_us, results[1].read_us

    def close(self) -> None:
        self._core.close()


def measure(
    open_reader: Callable[[], Reader],
    *,
    pages: Sequence[int] = PAGES,
    ranks: int = 1,
    seconds: float = 20.0,
    seed: int = 1,
    told: Callable[[float], None] = lambda share: None,
) -> tuple[list[ReadSample], Reader]:
    """Samples (mean time per load and layer), and a closed reader that says what was read and how.

    open_reader  makes one rank's reader
    pages    page counts of one rank, at least two different ones
    ranks    readers at the same time, a thread each; times are those of the slowest
    told     called with the share of the time that has passed
    raises   ConfigError for loads that the table cannot serve; what reading raises
    """
    if len(set(pages)) < 2 or min(pages) < 1:
        raise ConfigError(f"page counts {', '.join(map(str, pages))}: expected at least two different ones above 0")
    with ExitStack() as stack:
        readers = [stack.enter_context(closing(open_reader())) for _ in range(ranks)]
        loads, first = loads_of(pages), readers[0]
        if (needed := max(load.first + load.behind for load in loads)) > first.page_count:
            raise ConfigError(f"{first.label}: {first.page_count} pages, expected at least {needed} for such a step")
        times = _run(readers, loads, seconds, seed, told)
    return [sample for load in loads for sample in _samples(load, times[load])], first


def _run(
    ranks: Sequence[Reader], loads: Sequence[Load], seconds: float, seed: int, told: Callable[[float], None]
) -> dict[Load, _Times]:
    """Visit the loads in turn, shuffled, until the time is over; the first round only warms up."""
    rng = np.random.default_rng(seed)
    times = {load: _Times() for load in loads}
    readers = _Readers(ranks, seed)
    start = time.monotonic()
    try:
        warm = False
        while not warm or (now := time.monotonic() - start) < seconds:
            for index in rng.permutation(len(loads)):
                load = loads[index]
                for first_us, behind_us in readers.steps(load, STEPS_PER_VISIT):
                    if warm:
                        times[load].first_us.append(first_us)
                        times[load].behind_us.append(behind_us)
            if not warm:
                start = time.monotonic()
                warm = True
                continue
            told(min(1.0, now / seconds))
    finally:
        readers.close()
    return times


def _samples(load: Load, times: _Times) -> Iterator[ReadSample]:
    yield ReadSample(load.first, load.behind, statistics.fmean(times.first_us))
    if load.behind:
        yield ReadSample(load.first + load.behind, 0, statistics.fmean(times.behind_us))


class _Readers:
    """One thread per rank beyond the caller's own; all start each step together."""

    def __init__(self, ranks: Sequence[Reader], seed: int) -> None:
        self._ranks = ranks
        self._rngs = [np.random.default_rng((seed, rank)) for rank in range(len(ranks))]
        self._barrier = threading.Barrier(len(ranks))
        self._load = Load(0, 0)
        self._results: list[tuple[float, float]] = [(0.0, 0.0)] * len(ranks)
        self._fault: Exception | None = None
        self._threads = [threading.Thread(target=self._follow, args=(i,)) for i in range(1, len(ranks))]
        for thread in self._threads:
            thread.start()

    def steps(self, load: Load, count: int) -> Iterator[tuple[float, float]]:
        """Read times of the slowest rank in us, step by step; raises what any rank's reading raised."""
        self._load = load
        for _ in range(count):
            self._step(0)
            if self._fault is not None:
                raise self._fault
            yield max(first for first, _ in self._results), max(behind for _, behind in self._results)

    def close(self) -> None:
        self._barrier.abort()
        for thread in self._threads:
            thread.join()

    def _follow(self, rank: int) -> None:
        try:
            while True:
                self._step(rank)
        except threading.BrokenBarrierError:
            return

    def _step(self, rank: int) -> None:
        """One step of one rank: all meet, draw their pages, start reading together, and meet again at the end."""
        self._barrier.wait(_BARRIER_S)
        reader, load = self._ranks[rank], self._load
        page_ids = self._rngs[rank].choice(reader.page_count, load.first + load.behind, replace=False)
        rows = page_ids * reader.rows_per_page
        self._barrier.wait(_BARRIER_S)
        try:
            self._results[rank] = reader.read(rows[: load.first], rows[load.first :])
        except Exception as exc:  # raised again by the caller's thread
            self._fault = exc
        self._barrier.wait(_BARRIER_S)
