# SPDX-License-Identifier: Apache-2.0
"""The bench's shared parts: the table, the stock kernels and the compute; bits first, then cells."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from slacktier.errors import ConfigError
from slacktier_engine.decode_bench.arms import (
    CHUNK_TOKENS,
    COLUMNS,
    DIM,
    Arm,
    NoLookups,
    OnDemandArm,
    PathArm,
    PathSetup,
    Step,
    StockArm,
)
from slacktier_engine.decode_bench.cells import REGION_SOURCES, SOURCES, CellSpec
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS, Compute
from slacktier_engine.decode_bench.device import Device
from slacktier_engine.decode_bench.drawn import DrawnSteps, draw_steps
from slacktier_engine.decode_bench.exactness import Checker
from slacktier_engine.decode_bench.inputs import StepInputs, chunk_ids, step_ids
from slacktier_engine.decode_bench.measure import Turns, percentiles
from slacktier_engine.decode_bench.regions import RegionSources
from slacktier_engine.decode_bench.stock import StockKernels
from slacktier_engine.decode_bench.table import BenchTable
from slacktier_engine.decode_bench.workload import Positions, TokenStream, Workload, build_workload
from slacktier_native.sources import AnySource, MemorySpec
from slacktier_rowids.engram import EngramHasher

_TINY_CACHE_ROWS: Final = 2048


@dataclass(frozen=True)
class Settings:
    """cache_rows    both layers of one rank together
    blocks        of block_steps rounds (a sixth of that for steps of 5 ms and more, which come in bursts)
    readers       threads that copy rows, per rank
    regions       zram, disk, tcp -> where
    """

    kernels: Path | None = None
    cache_rows: int = 1_000_000
    table_bytes: int = 32 << 30
    blocks: int = 4
    block_steps: int = 60
    warm_tokens: int = 400_000
    checked_chunks: int = 4
    readers: int = 4
    regions: Mapping[str, str] = field(default_factory=dict)


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class DecodeBench:
    """The table, the stock kernels and the compute, shared by all cells."""

    def __init__(
        self,
        hasher: EngramHasher,
        stock: StockKernels,
        settings: Settings,
        device: Device,
        compute: Compute,
        cpus: tuple[int, ...] = (),
    ) -> None:
        self.cpus = cpus  # of a path's thread and its readers
        self.device, self.settings, self.hasher, self.stock, self.compute = device, settings, hasher, stock, compute
        log(f"filling a table of {settings.table_bytes / 2**30:.1f} GiB, twice")
        self.table = BenchTable(settings.table_bytes, device)
        log(f"{self.table.row_count} rows, pinned")
        self.regions = RegionSources(self.table, settings.regions)
        self.checker = Checker(stock, self.table, CHUNK_TOKENS, device.torch)
        shape = (CHUNK_TOKENS * COLUMNS, DIM)
        self.scratch = [torch.empty(shape, dtype=torch.bfloat16, device=device.torch) for _ in LOOKUP_LAYERS]
        self.first_read_us: list[float] = []
        self.first_resolved_us: list[float] = []

    def close(self) -> None:
        self.device.synchronize()
        self.regions.close()
        self.table.close()

    # ---- what a source is ----

    def memory(self, source: str) -> list[AnySource]:
        """The rows that a source will hold, in memory."""
        return self.regions.memory() if source in REGION_SOURCES else [MemorySpec(self.table.pages)] * 2

    def source(self, name: str) -> list[AnySource]:
        """Layers 1 and 14 on a source."""
        if name in REGION_SOURCES:
            return self.regions.get(name)
        model = SOURCES[name]
        return [MemorySpec(self.table.pages, f"bench-{name}", model) if model else MemorySpec(self.table.pages)] * 2

    def row_count(self, source: str) -> int:
        """Rows that ids are folded into."""
        return self.regions.row_count if source in REGION_SOURCES else self.table.row_count

    # ---- looking up outside a graph ----

    def extend_all(
        self, arm: PathArm | OnDemandArm, stream: TokenStream, positions: Positions, *, tp: int, checked: int, rows: int
    ) -> None:
        """Look positions up in chunks; the first `checked` chunks are compared bit for bit."""
        for chunk, first in enumerate(range(0, len(positions), CHUNK_TOKENS)):
            ids = chunk_ids(self.hasher, stream, positions[first : first + CHUNK_TOKENS], rows)
            on_device = ids.to(self.device.torch)
            for out in self.scratch:
                out.fill_(3.0)
            arm.extend(on_device, self.scratch)
            if chunk < checked:
                self.checker.compare(on_device, self.scratch, tp=tp)
        self.device.synchronize()
        arm.path.check()

    def check_with_tiny_cache(self, stream: TokenStream, source: str, *, tokens: int, steps: int) -> dict[str, Any]:
        """Pairs, extends and captured decode steps over a cache that evicts in every step."""
        work = build_workload(stream, slots=tokens, steps=steps, warm_tokens=2 * CHUNK_TOKENS)
        setup = PathSetup(tokens, (_TINY_CACHE_ROWS, _TINY_CACHE_ROWS), readers=self.settings.readers)
        arm = PathArm(source, self.memory(source), setup, self.device)
        before, rows = self.checker.rows_checked, self.row_count(source)
        self.checker.check_pairs(arm, self.scratch)
        arm.use(self.source(source))
        self.extend_all(arm, stream, work.warm, tp=1, checked=1 << 30, rows=rows)
        inputs = StepInputs(stream, work.decode, self.hasher.ngram_size - 1, self.device.torch)
        x = self.compute.activations(tokens)
        counts = self.compute.counts_for(x, (0.05, 0.4), 1.2)
        step = Step(arm, self.compute, counts, x, lambda: step_ids(self.stock, inputs, rows))
        self._compare_hashes(stream, work, inputs)
        for at in range(steps):
            inputs.load(at)
            arm.out[0].fill_(3.0)
            arm.out[1].fill_(3.0)
            arm.path.arm()
            step.replay()
            self.checker.compare(step.ids, arm.out, tp=1)
        arm.path.check()
        totals = list(arm.path.core.stats().values())
        arm.close()
        return {
            "source": source,
            "rows": self.checker.rows_checked - before,
            "evictions": sum(t["evictions"] for t in totals),
            "spills": sum(t["spills"] for t in totals),
            "pair_rows": self.checker.pair_rows_checked,
        }

    def _compare_hashes(self, stream: TokenStream, work: Workload, inputs: StepInputs) -> None:
        inputs.load(0)
        ours = chunk_ids(self.hasher, stream, work.decode[0], self.table.row_count)
        if not torch.equal(step_ids(self.stock, inputs, self.table.row_count).cpu(), ours):
            raise ConfigError(
                "row ids by the engine's hash kernel differ from ours", hint="is the token map this model's?"
            )

    # ---- cells ----

    def cell_setup(self, spec: CellSpec) -> PathSetup:
        total = self.settings.cache_rows if spec.cached else 0
        first = round(spec.split * total)
        readers = self.settings.readers
        return PathSetup(
            spec.tokens, (first, total - first), tp=spec.tp, readers=readers, far_first=spec.far_first,
            dedup=spec.dedup, cpus=self.cpus,
            backend="auto" if {*spec.sources, spec.second} & set(REGION_SOURCES) else "posix",
        )  # fmt: skip

    def run_cell(self, spec: CellSpec, source: str, stream: TokenStream) -> dict[str, Any]:
        """Measure one workload on one source."""
        settings, setup, rows = self.settings, self.cell_setup(spec), self.row_count(source)
        arm = (
            OnDemandArm(source, self.table, setup, self.device)
            if spec.on_demand
            else PathArm(source, self.memory(source), setup, self.device)
        )
        rounds = settings.block_steps if spec.step_ms < 5 else max(2, settings.block_steps // 6)
        steps = settings.blocks * rounds * (1 if spec.step_ms < 5 else 4)
        feed = (
            _TraceFeed(self, spec, stream, arm, rows, steps)
            if spec.hit is None
            else _DrawnFeed(self, spec, spec.hit, arm, rows, steps)
        )
        if isinstance(arm, PathArm):
            sources = self.source(source)
            arm.use([sources[0], self.source(spec.second)[1] if spec.second else sources[1]])
        x = self.compute.activations(spec.tokens)
        counts = self.compute.counts_for(x, spec.window_ms, spec.step_ms)
        windows_ms = self.compute.windows_ms(x, counts)
        out = [torch.empty_like(o) for o in arm.out]
        shard = (0, -(-self.table.row_count // spec.tp))
        arms: list[Arm] = [NoLookups(), arm]
        arms[1:1] = [
            StockArm(n, self.stock, self.table, shard, s, out) for n, s in (("stock", False), ("sorted", True))
        ]
        made = [Step(a, self.compute, counts, x, feed.ids, eager=spec.eager) for a in arms]
        self.device.synchronize()
        turns = Turns(self.device, made, feed.load, feed.prepare, spec.step_ms)
        wrong = 0
        for block in range(settings.blocks):
            turns.run_block(block * rounds * turns.burst, rounds)
            wrong += self.checker.compare(made[-1].ids, arm.out, tp=spec.tp)
        result = self._cell(spec, source, setup, windows_ms, turns) | {"mismatched_rows": wrong}
        arm.close()
        return result

    def _cell(
        self, spec: CellSpec, source: str, setup: PathSetup, windows_ms: tuple[float, float], turns: Turns
    ) -> dict[str, Any]:
        head: dict[str, Any] = {
            "trace": spec.trace, "source": source, "tokens": spec.tokens, "tp": spec.tp,
            "cache_rows": sum(setup.cache_rows), "split": spec.split,
            "window_ms": round(windows_ms[0], 4), "second_window_ms": round(windows_ms[1], 4),
        }  # fmt: skip
        if spec.options:
            head["options"] = spec.options
        result = head | turns.result(source)
        model = SOURCES[spec.second or source]
        if model is not None and source.startswith("nvme") and not spec.options.startswith(("far", "split=0", "no-")):
            predicted = model.a_us + model.b_us * result["pages"][0] + model.c_us * result["pages"][1]
            exposed = max(0.0, predicted - 1e3 * windows_ms[0])
            result["beyond_model_us"] = round((result["added_us"]["p50"] or 0.0) - exposed, 1)
        if spec.tp == 1 and spec.tokens == 128 and not spec.options:
            records = turns.records(source)
            self.first_read_us.extend((records["first_read_ns"] / 1e3).tolist())
            self.first_resolved_us.extend((records["first_resolved_ns"] / 1e3).tolist())
        log(
            f"  {source} {spec.options}: hit {result['hit_rate']} added {result['added_us']} stock "
            f"{result['stock_added_us']} net {result['net_of_stock_percent']} % step {result['step_ms']} ms window "
            f"{result['window_ms']} ms known {result['first_layer_resolved_us']} ready "
            f"{result['first_layer_ready_us']} pages {result['pages']} beyond {result.get('beyond_model_us')}"
        )
        return result


class _TraceFeed:
    """A cell's input from a trace: the cache warmed with what came before, prefills between the steps."""

    def __init__(
        self, bench: DecodeBench, spec: CellSpec, stream: TokenStream, arm: PathArm | OnDemandArm, rows: int, steps: int
    ) -> None:
        self._bench, self._stream, self._rows = bench, stream, rows
        self._work = build_workload(stream, slots=spec.tokens, steps=steps, warm_tokens=bench.settings.warm_tokens)
        bench.extend_all(arm, stream, self._work.warm, tp=spec.tp, checked=bench.settings.checked_chunks, rows=rows)
        log(f"{spec.trace}, {spec.tokens} tokens, tp {spec.tp}: warm after {len(self._work.warm)} tokens")
        self._inputs = StepInputs(stream, self._work.decode, bench.hasher.ngram_size - 1, bench.device.torch)

    def ids(self) -> torch.Tensor:
        return step_ids(self._bench.stock, self._inputs, self._rows)

    def load(self, step: int) -> None:
        self._inputs.load(step)

    def prepare(self, arm: PathArm | OnDemandArm, step: int) -> int:
        positions = self._work.prefill[step]
        for first in range(0, len(positions), CHUNK_TOKENS):
            ids = chunk_ids(self._bench.hasher, self._stream, positions[first : first + CHUNK_TOKENS], self._rows)
            arm.extend(ids.to(self._bench.device.torch), self._bench.scratch)
        return -(-len(positions) // CHUNK_TOKENS)


class _DrawnFeed:
    """A cell's input with a forced hit rate."""

    def __init__(
        self, bench: DecodeBench, spec: CellSpec, hit: float, arm: PathArm | OnDemandArm, rows: int, steps: int
    ) -> None:
        drawn: DrawnSteps = draw_steps(
            tokens=spec.tokens, layers=len(LOOKUP_LAYERS), columns=COLUMNS, tp=spec.tp, pages=spec.pages, hit=hit,
            steps=steps, row_count=rows,
        )  # fmt: skip
        self._steps = torch.from_numpy(drawn.steps).to(bench.device.torch)
        self._ids = self._steps[0].clone()
        warm = torch.from_numpy(drawn.warm).to(bench.device.torch)
        for first in range(0, len(warm), CHUNK_TOKENS):
            arm.extend(warm[first : first + CHUNK_TOKENS], bench.scratch)
        bench.device.synchronize()

    def ids(self) -> torch.Tensor:
        return torch.add(self._ids, 0)

    def load(self, step: int) -> None:
        self._ids.copy_(self._steps[step])

    def prepare(self, arm: PathArm | OnDemandArm, step: int) -> int:
        return 0


def summary(bench: DecodeBench) -> dict[str, Any]:
    """What the report says of the whole run."""
    return {
        "machine": bench.device.name,
        "torch": str(torch.__version__),
        "stock_table_bytes": bench.table.stock_bytes,
        "row_count": bench.table.row_count,
        "readers": bench.settings.readers,
        "rows_checked": bench.checker.rows_checked,
        "mismatched_rows": bench.checker.mismatched_rows,
        "first_read_us": percentiles(bench.first_read_us),
        "first_layer_resolved_us": percentiles(bench.first_resolved_us),
    }
