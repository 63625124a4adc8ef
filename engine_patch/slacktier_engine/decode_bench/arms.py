# SPDX-License-Identifier: Apache-2.0
"""One decode step in a captured graph, per arm: the same compute with no lookups, the stock gather, or our path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from slacktier_engine.decode_bench.cells import SOURCES
from slacktier_engine.decode_bench.compute import LAYERS, LOOKUP_LAYERS, Compute, LayerCounts
from slacktier_engine.decode_bench.inputs import CHUNK_TOKENS
from slacktier_engine.decode_bench.stock import StockKernels
from slacktier_engine.decode_bench.table import BenchTable
from slacktier_engine.step import GpuStepPath
from slacktier_native.core import LayerSetup, LookupCore, MemorySpec
from slacktier_native.step_path import StepSettings

COLUMNS = 24
DIM = 256


class Arm(Protocol):
    """begin: the ids exist; layer: the model needs these rows now."""

    name: str

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None: ...


class NoLookups:
    """The same graph without lookups: what added time is measured against."""

    name = "none"

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None: ...


@dataclass
class StockArm:
    """The engine's gather from the pinned host table, on the main stream. rows: the shard of this rank."""

    name: str
    kernels: StockKernels
    table: BenchTable
    rows: tuple[int, int]
    sort_ids: bool
    out: Sequence[torch.Tensor]

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None:
        self.kernels.gather(
            self.table.weights, self.table.scales, ids[:, index].reshape(-1), self.out[index], self.rows,
            sort_ids=self.sort_ids,
        )  # fmt: skip


class PathArm:
    """Our step path over one source."""

    def __init__(
        self,
        source: str,
        table: BenchTable,
        *,
        tokens: int,
        tp: int,
        cache_rows: int,
        readers: int,
        spin_ms: int,
        device: torch.device,
    ) -> None:
        self.name = source
        self._source, self._table = source, table
        layers = [LayerSetup(i, (MemorySpec(table.pages),), cache_rows=cache_rows) for i in LOOKUP_LAYERS]
        core = LookupCore(
            layers, rank=0, tp=tp, lookups_max=max(CHUNK_TOKENS, tokens) * COLUMNS, io_threads=readers,
            backend="posix", spin_us=1000 * spin_ms,
        )  # fmt: skip
        self.path = GpuStepPath(
            core,
            cache_rows_max=[cache_rows] * len(layers),
            columns=COLUMNS,
            device=device,
            settings=StepSettings(spin_ms=spin_ms),
        )
        shape = (tokens * COLUMNS, DIM)
        self.out = [torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in LOOKUP_LAYERS]

    def begin(self, ids: torch.Tensor) -> None:
        self.path.issue(ids)

    def layer(self, index: int, ids: torch.Tensor) -> None:
        self.path.join(index, self.out[index])

    def use_source(self) -> None:
        """From the table in memory, which warms up fast, to the source that is measured; the cache stays."""
        model = SOURCES[self._source]
        if model is None:
            return
        with self.path.between_steps() as core:
            for index in range(len(LOOKUP_LAYERS)):
                core.set_sources(index, [MemorySpec(self._table.pages, f"bench-{self._source}", model)])

    def extend(self, ids: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """A prefill chunk, eager: ids [T, L, C] on the device, out per layer [>= T * C, dim]."""
        self.path.arm()
        self.path.issue(ids)
        for index in range(len(LOOKUP_LAYERS)):
            self.path.join(index, out[index][: ids.shape[0] * COLUMNS])


class StepGraph:
    """A captured step: the ids by the stock hash, then 40 layers; `ids` holds the last replayed step's."""

    def __init__(
        self,
        arm: Arm,
        compute: Compute,
        counts: LayerCounts,
        x: list[torch.Tensor],
        make_ids: Callable[[], torch.Tensor],
    ) -> None:
        self.arm = arm
        for _ in range(2):  # compiles and loads everything, as the engine's own warm-up does
            self._queue(arm, compute, counts, x, make_ids)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.ids = self._queue(arm, compute, counts, x, make_ids)

    @staticmethod
    def _queue(
        arm: Arm, compute: Compute, counts: LayerCounts, x: list[torch.Tensor], make_ids: Callable[[], torch.Tensor]
    ) -> torch.Tensor:
        compute.start()
        ids = make_ids()
        arm.begin(ids)
        for layer in range(LAYERS):
            if layer in LOOKUP_LAYERS:
                arm.layer(LOOKUP_LAYERS.index(layer), ids)
            compute.run(x, counts.of(layer))
        return ids

    def replay(self) -> None:
        self._graph.replay()
