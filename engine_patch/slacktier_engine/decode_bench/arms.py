# SPDX-License-Identifier: Apache-2.0
"""One decode step, per arm: the same compute with no lookups, the stock gather, or our path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from slacktier_engine.decode_bench.compute import LAYERS, LOOKUP_LAYERS, Compute, LayerCounts
from slacktier_engine.decode_bench.device import Device, Graph
from slacktier_engine.decode_bench.stock import StockKernels
from slacktier_engine.decode_bench.table import BenchTable
from slacktier_engine.step import GpuStepPath
from slacktier_native.core import LayerSetup, LookupCore
from slacktier_native.placement import threads_on
from slacktier_native.sources import AnySource, MemorySpec
from slacktier_native.step_path import StepSettings

COLUMNS = 24
DIM = 256
CHUNK_TOKENS = 8192


class Arm(Protocol):
    """begin: the ids exist; layer: the model needs these rows now."""

    name: str

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None: ...


class NoLookups:
    """The same step without lookups: what added time is measured against."""

    name = "none"

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None: ...


@dataclass
class StockArm:
    """The engine's gather from the pinned host table, on the main stream. rows: the shard of this rank.

    reduce  what follows a sharded gather: the sum over the ranks
    """

    name: str
    kernels: StockKernels
    table: BenchTable
    rows: tuple[int, int]
    sort_ids: bool
    out: Sequence[torch.Tensor]
    reduce: Callable[[torch.Tensor], None] | None = None

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None:
        flat = ids[:, index].reshape(-1)
        out = self.out[index][: flat.numel()]
        self.kernels.gather(self.table.weights, self.table.scales, flat, out, self.rows, sort_ids=self.sort_ids)
        if self.reduce is not None:
            self.reduce(out)


@dataclass(frozen=True)
class PathSetup:
    """cache_rows  of layers 1 and 14
    cpus          the thread's, then the readers'; empty: anywhere
    far_first     layer 14 comes first
    """

    tokens: int
    cache_rows: tuple[int, int]
    rank: int = 0
    tp: int = 1
    readers: int = 4
    spin_ms: float = 300.0
    timeout_s: float = 10.0
    lookups_max: int = CHUNK_TOKENS * COLUMNS
    far_first: bool = False
    dedup: bool = True
    backend: str = "posix"
    cpus: tuple[int, ...] = ()


def take_cpus(readers: int, lane: int = 0, lanes: int = 1) -> tuple[int, ...]:
    """Processors for a path's thread and its readers, every other one where there are enough; else none.

    This process's other threads leave them from now on: one that gets the same processor costs a reader 4 ms at once.
    lane: which of `lanes` processes beside each other.
    """
    allowed = sorted(os.sched_getaffinity(0))
    share = allowed[lane * len(allowed) // lanes : (lane + 1) * len(allowed) // lanes]
    wanted = share[2::2]
    if len(wanted) <= readers:
        return ()
    os.sched_setaffinity(0, set(share) - set(wanted[: readers + 1]))
    return tuple(wanted[: readers + 1])


class PathArm:
    """Our step path. sources: what layers 1 and 14 are read from while the cache is warmed."""

    def __init__(
        self,
        name: str,
        sources: Sequence[AnySource],
        setup: PathSetup,
        device: Device,
        reduce: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        self.name, self._reduce, self._far_first = name, reduce, setup.far_first
        order = (1, 0) if setup.far_first else (0, 1)
        layers = [LayerSetup(LOOKUP_LAYERS[i], (sources[i],), cache_rows=setup.cache_rows[i]) for i in order]
        with threads_on(setup.cpus[1:]):
            core = LookupCore(
                layers, rank=setup.rank, tp=setup.tp, lookups_max=max(setup.lookups_max, setup.tokens * COLUMNS),
                io_threads=setup.readers, backend=setup.backend, spin_us=int(1000 * setup.spin_ms),
                timeout_s=setup.timeout_s,
            )  # fmt: skip
        core.set_dedup(setup.dedup)
        self.path = GpuStepPath(
            core, cache_rows_max=[setup.cache_rows[i] for i in order], columns=COLUMNS, device=device.torch,
            settings=StepSettings(timeout_s=setup.timeout_s, spin_ms=setup.spin_ms, cpus=setup.cpus[:1]),
        )  # fmt: skip
        shape = (setup.tokens * COLUMNS, DIM)
        self.out = [torch.empty(shape, dtype=torch.bfloat16, device=device.torch) for _ in LOOKUP_LAYERS]

    def _core_index(self, index: int) -> int:
        return 1 - index if self._far_first else index

    def begin(self, ids: torch.Tensor) -> None:
        self.path.issue(ids.flip(1) if self._far_first else ids)

    def layer(self, index: int, ids: torch.Tensor) -> None:
        out = self.out[index][: ids.shape[0] * COLUMNS]
        self.path.join(self._core_index(index), out)
        if self._reduce is not None:
            self._reduce(out)

    def use(self, sources: Sequence[AnySource]) -> None:
        """From what warms up fast to the sources of layers 1 and 14 that are measured; the cache stays."""
        with self.path.between_steps() as core:
            for index, source in enumerate(sources):
                core.set_sources(self._core_index(index), [source])

    def extend(self, ids: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """A prefill chunk, eager: ids [T, L, C] on the device, out per layer [>= T * C, dim]."""
        self.path.arm()
        self.begin(ids)
        for index in range(len(LOOKUP_LAYERS)):
            part = out[index][: ids.shape[0] * COLUMNS]
            self.path.join(self._core_index(index), part)
            if self._reduce is not None:
                self._reduce(part)

    def arm_path(self) -> None:
        self.path.arm()

    def close(self) -> None:
        self.path.close()


class OnDemandArm:
    """Lookups that begin where a layer needs them: no window at all. A path per layer."""

    def __init__(self, name: str, table: BenchTable, setup: PathSetup, device: Device) -> None:
        self.name = name
        self.paths: list[GpuStepPath] = []
        for index, layer_id in enumerate(LOOKUP_LAYERS):
            core = LookupCore(
                [LayerSetup(layer_id, (MemorySpec(table.pages),), cache_rows=setup.cache_rows[index])], tp=setup.tp,
                lookups_max=max(setup.lookups_max, setup.tokens * COLUMNS), io_threads=setup.readers, backend="posix",
                spin_us=int(1000 * setup.spin_ms),
            )  # fmt: skip
            self.paths.append(
                GpuStepPath(
                    core,
                    cache_rows_max=[setup.cache_rows[index]],
                    columns=COLUMNS,
                    device=device.torch,
                    settings=StepSettings(spin_ms=setup.spin_ms),
                )
            )
        shape = (setup.tokens * COLUMNS, DIM)
        self.out = [torch.empty(shape, dtype=torch.bfloat16, device=device.torch) for _ in LOOKUP_LAYERS]

    @property
    def path(self) -> GpuStepPath:
        """Whose records stand for both."""
        return self.paths[0]

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None:
        self.paths[index].issue(ids[:, index : index + 1])
        self.paths[index].join(0, self.out[index])

    def extend(self, ids: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        self.arm_path()
        for index, path in enumerate(self.paths):
            path.issue(ids[:, index : index + 1])
            path.join(0, out[index][: ids.shape[0] * COLUMNS])

    def arm_path(self) -> None:
        for path in self.paths:
            path.arm()

    def close(self) -> None:
        for path in self.paths:
            path.close()


class Step:
    """One decode step of an arm: the ids, then 40 layers; captured, or (eager) queued anew each time."""

    def __init__(
        self,
        arm: Arm,
        compute: Compute,
        counts: LayerCounts,
        x: list[torch.Tensor],
        make_ids: Callable[[], torch.Tensor],
        *,
        eager: bool = False,
    ) -> None:
        self.arm = arm
        self._compute, self._counts, self._x, self._make_ids = compute, counts, x, make_ids
        self._graph: Graph | None = None if eager else compute.device.capture(self._queue)
        self._ids = make_ids() if self._graph is None else self._graph.result

    def _queue(self) -> torch.Tensor:
        self._compute.start()
        ids = self._make_ids()
        self.arm.begin(ids)
        for layer in range(LAYERS):
            if layer in LOOKUP_LAYERS:
                self.arm.layer(LOOKUP_LAYERS.index(layer), ids)
            self._compute.run(self._x, self._counts.of(layer))
        return ids

    @property
    def ids(self) -> torch.Tensor:
        """Of the last replay."""
        return self._ids

    def replay(self) -> None:
        if self._graph is None:
            self._ids = self._queue()
        else:
            self._graph.replay()
