# SPDX-License-Identifier: Apache-2.0
"""Runs `bench decode`: sets the table up once, checks bits, then measures cell by cell, arms interleaved in blocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from slacktier.errors import ConfigError
from slacktier_engine.decode_bench.arms import COLUMNS, DIM, Arm, NoLookups, PathArm, StepGraph, StockArm
from slacktier_engine.decode_bench.cells import LEFT_OUT, CellSpec
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS, Compute
from slacktier_engine.decode_bench.exactness import Checker
from slacktier_engine.decode_bench.inputs import CHUNK_TOKENS, StepInputs, chunk_ids, step_ids
from slacktier_engine.decode_bench.stock import StockKernels, find_kernels
from slacktier_engine.decode_bench.table import BenchTable
from slacktier_engine.decode_bench.workload import Positions, TokenStream, Workload, build_workload
from slacktier_rowids.engram import EngramHasher

# A pause before each timed step: the host is then ahead of the device, and after long steps the device stays below its
# power limit, where its clock wanders.
_SHORT_STEP_MS: Final = 5.0
_GAP_CYCLES: Final = {True: 6_000_000, False: 20_000_000}  # short step or not: about 3 and 10 ms
_SPIN_MS: Final = 300  # across the other arms' steps: a server's own steps follow each other
_TINY_CACHE_ROWS: Final = 2048
_SPLIT: Final = 0.5


@dataclass(frozen=True)
class Settings:
    """cache_rows    both layers of one rank together, split evenly
    table_bytes   of the engine's pinned table; ours takes 3 % more beside it
    blocks        of block_steps rounds (a third of that for steps of 5 ms and more); in a round each arm runs the same
                  step once, in an order that moves on
    readers       threads that copy rows, per rank
    """

    kernels: Path | None = None
    cache_rows: int = 1_000_000
    table_bytes: int = 32 << 30
    blocks: int = 4
    block_steps: int = 60
    warm_tokens: int = 400_000
    checked_chunks: int = 12
    readers: int = 4


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def percentiles(values: Sequence[float] | npt.NDArray[Any]) -> dict[str, float | None]:
    """p50 and p99, rounded to 0.01; None where there is nothing."""
    if len(values) == 0:
        return {"p50": None, "p99": None}
    low, high = np.percentile(np.asarray(values, np.float64), [50, 99])
    return {"p50": round(float(low), 2), "p99": round(float(high), 2)}


class DecodeBench:
    """The table, the stock kernels and the compute, shared by all cells."""

    def __init__(self, hasher: EngramHasher, token_map: npt.NDArray[np.int32], settings: Settings) -> None:
        if not torch.cuda.is_available():
            raise ConfigError("no CUDA GPU", hint="`bench decode` measures a GPU's step; it has no CPU figure to give")
        directory = find_kernels(settings.kernels)
        self.device = torch.device("cuda")
        self.settings, self.hasher = settings, hasher
        self.stock = StockKernels(directory, hasher, torch.from_numpy(token_map.astype(np.int32)).to(self.device))
        log(f"filling a table of {settings.table_bytes >> 30} GiB, twice")
        self.table = BenchTable(settings.table_bytes)
        log(f"{self.table.row_count} rows, pinned")
        self.compute = Compute(self.device)
        self.checker = Checker(self.stock, self.table, CHUNK_TOKENS, self.device)
        self.scratch = [
            torch.empty((CHUNK_TOKENS * COLUMNS, DIM), dtype=torch.bfloat16, device=self.device) for _ in LOOKUP_LAYERS
        ]
        self.first_read_us: list[float] = []
        self.first_resolved_us: list[float] = []

    def close(self) -> None:
        torch.cuda.synchronize()
        self.table.close()

    def rounds(self, spec: CellSpec) -> int:
        """Of one block."""
        return self.settings.block_steps if _is_short(spec) else max(2, self.settings.block_steps // 3)

    def path_arm(self, source: str, tokens: int, tp: int, cache_rows: int, spin_ms: int) -> PathArm:
        return PathArm(
            source, self.table, tokens=tokens, tp=tp, cache_rows=cache_rows // len(LOOKUP_LAYERS),
            readers=self.settings.readers, spin_ms=spin_ms, device=self.device,
        )  # fmt: skip

    def extend_all(
        self, arms: Sequence[PathArm], stream: TokenStream, positions: Positions, tp: int, checked: int
    ) -> None:
        """Look positions up on every arm in chunks; the first `checked` chunks are compared bit for bit."""
        for chunk, first in enumerate(range(0, len(positions), CHUNK_TOKENS)):
            ids = chunk_ids(self.hasher, stream, positions[first : first + CHUNK_TOKENS], self.table.row_count)
            on_device = ids.to(self.device)
            for arm in arms:
                for out in self.scratch:
                    out.fill_(3.0)
                arm.extend(on_device, self.scratch)
                if chunk < checked:
                    self.checker.compare(on_device, self.scratch, tp=tp)
        torch.cuda.synchronize()
        for arm in arms:
            arm.path.check()

    def check_with_tiny_cache(self, stream: TokenStream, source: str, *, tokens: int, steps: int) -> dict[str, Any]:
        """Pairs, extends and captured decode steps over a cache that evicts in every step."""
        work = build_workload(stream, slots=tokens, steps=steps, warm_tokens=4 * CHUNK_TOKENS)
        arm = self.path_arm(source, tokens, 1, 2 * _TINY_CACHE_ROWS, _SPIN_MS)
        before = self.checker.rows_checked
        self.checker.check_pairs(arm, self.scratch)
        arm.use_source()
        self.extend_all([arm], stream, work.warm, 1, checked=1 << 30)
        inputs = StepInputs(stream, work.decode, self.hasher.ngram_size - 1, self.device)
        x = self.compute.activations(tokens)
        counts = self.compute.counts_for(x, (0.05, 0.4), 1.2)
        graph = StepGraph(arm, self.compute, counts, x, lambda: step_ids(self.stock, inputs, self.table.row_count))
        self._compare_hashes(stream, work, inputs)
        for step in range(steps):
            inputs.load(step)
            arm.out[0].fill_(3.0)
            arm.out[1].fill_(3.0)
            arm.path.arm()
            graph.replay()
            self.checker.compare(graph.ids, arm.out, tp=1)
        arm.path.check()
        totals = list(arm.path.core.stats().values())
        evictions, spills = sum(t["evictions"] for t in totals), sum(t["spills"] for t in totals)
        arm.path.close()
        return {
            "source": source,
            "rows": self.checker.rows_checked - before,
            "evictions": evictions,
            "spills": spills,
            "pair_rows": self.checker.pair_rows_checked,
        }

    def _compare_hashes(self, stream: TokenStream, work: Workload, inputs: StepInputs) -> None:
        inputs.load(0)
        ours = chunk_ids(self.hasher, stream, work.decode[0], self.table.row_count)
        if not torch.equal(step_ids(self.stock, inputs, self.table.row_count).cpu(), ours):
            raise ConfigError(
                "row ids by the engine's hash kernel differ from ours", hint="is the token map this model's?"
            )

    def run_cell(self, spec: CellSpec, stream: TokenStream) -> list[dict[str, Any]]:
        """Measure one workload on its sources; one result per source."""
        settings = self.settings
        work = build_workload(
            stream, slots=spec.tokens, steps=settings.blocks * self.rounds(spec), warm_tokens=settings.warm_tokens
        )
        arms = [self.path_arm(source, spec.tokens, spec.tp, settings.cache_rows, _SPIN_MS) for source in spec.sources]
        self.extend_all(arms, stream, work.warm, spec.tp, settings.checked_chunks)
        log(f"{spec.trace}, {spec.tokens} tokens, tp {spec.tp}: warm after {len(work.warm)} tokens")
        for arm in arms:
            arm.use_source()
        inputs = StepInputs(stream, work.decode, self.hasher.ngram_size - 1, self.device)
        x = self.compute.activations(spec.tokens)
        counts = self.compute.counts_for(x, spec.window_ms, spec.step_ms)
        windows_ms = self.compute.windows_ms(x, counts)
        out = [torch.empty_like(o) for o in arms[0].out]
        shard = (0, -(-self.table.row_count // spec.tp))
        stocks = [StockArm(n, self.stock, self.table, shard, s, out) for n, s in (("stock", False), ("sorted", True))]
        make_ids: Callable[[], torch.Tensor] = lambda: step_ids(self.stock, inputs, self.table.row_count)  # noqa: E731
        every = _alternating([NoLookups(), *stocks], arms)
        graphs = {arm.name: StepGraph(arm, self.compute, counts, x, make_ids) for arm in every}
        torch.cuda.synchronize()
        measured = _Measured(self, spec, stream, work, inputs)
        for block in range(settings.blocks):
            measured.run_block(block, list(graphs.values()))
        results = [measured.result(arm, windows_ms) for arm in arms]
        for arm in arms:
            arm.path.close()
        return results

    def report(self, cells: Sequence[Mapping[str, Any]], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The command's JSON object."""
        return {
            "machine": torch.cuda.get_device_name(self.device),
            "torch": str(torch.__version__),
            "stock_table_bytes": self.table.stock_bytes,
            "row_count": self.table.row_count,
            "readers": self.settings.readers,
            "cells": list(cells),
            "checks": list(checks),
            "rows_checked": self.checker.rows_checked,
            "mismatched_rows": self.checker.mismatched_rows,
            "first_read_us": percentiles(self.first_read_us),
            "first_layer_resolved_us": percentiles(self.first_resolved_us),
            "left_out": dict(LEFT_OUT),
        }


def _is_short(spec: CellSpec) -> bool:
    return spec.step_ms < _SHORT_STEP_MS


def _alternating(others: Sequence[Arm], paths: Sequence[PathArm]) -> list[Arm]:
    """Paths kept apart, so that one's readers do not work while the next one looks up."""
    mixed: list[Arm] = []
    for index in range(max(len(others), len(paths))):
        mixed += [*others[index : index + 1], *paths[index : index + 1]]
    return mixed


class _Measured:
    """Step times per arm, and what the CPU threads recorded of the timed steps."""

    def __init__(
        self, bench: DecodeBench, spec: CellSpec, stream: TokenStream, work: Workload, inputs: StepInputs
    ) -> None:
        self._bench, self._spec, self._stream, self._work, self._inputs = bench, spec, stream, work, inputs
        self._times_us: dict[str, list[float]] = {}
        self._records: dict[str, list[npt.NDArray[np.void]]] = {}
        self._mismatched: dict[str, int] = {}

    def run_block(self, block: int, graphs: list[StepGraph]) -> None:
        """Rounds of one block: the paths' prefills, then each arm's step; the arm that starts moves on."""
        steps = self._bench.rounds(self._spec)
        served = {a.name: a.path.status().steps for a in self._paths(graphs)}
        timed: dict[str, list[int]] = {name: [] for name in served}
        events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        for step in range(block * steps, (block + 1) * steps):
            for arm in self._paths(graphs):
                served[arm.name] += self._prefill(arm, step) + 1
                timed[arm.name].append(served[arm.name])
            self._inputs.load(step)
            turn = step % len(graphs)
            for graph in graphs[turn:] + graphs[:turn]:
                events.append(self._timed(graph, events[-1][2] if events else None))
        torch.cuda.synchronize()
        for name, begin, end in events:
            self._times_us.setdefault(name, []).append(1e3 * begin.elapsed_time(end))
        for graph in graphs:
            if isinstance(graph.arm, PathArm):
                self._keep(graph.arm, graph, timed[graph.arm.name])

    @staticmethod
    def _paths(graphs: list[StepGraph]) -> list[PathArm]:
        return [g.arm for g in graphs if isinstance(g.arm, PathArm)]

    def _timed(
        self, graph: StepGraph, before: torch.cuda.Event | None
    ) -> tuple[str, torch.cuda.Event, torch.cuda.Event]:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if before is not None:
            before.synchronize()
        if isinstance(graph.arm, PathArm):
            graph.arm.path.arm()
        torch.cuda._sleep(_GAP_CYCLES[_is_short(self._spec)])
        begin.record()
        graph.replay()
        end.record()
        return graph.arm.name, begin, end

    def _prefill(self, arm: PathArm, step: int) -> int:
        positions = self._work.prefill[step]
        for first in range(0, len(positions), CHUNK_TOKENS):
            part = positions[first : first + CHUNK_TOKENS]
            ids = chunk_ids(self._bench.hasher, self._stream, part, self._bench.table.row_count)
            arm.extend(ids.to(self._bench.device), self._bench.scratch)
        return -(-len(positions) // CHUNK_TOKENS)

    def _keep(self, arm: PathArm, graph: StepGraph, timed: list[int]) -> None:
        arm.path.check()
        records = arm.path.records()
        kept = records[np.isin(records["step"], timed)]
        if len(kept) != len(timed):
            raise ConfigError(f"{arm.name}: {len(kept)} of {len(timed)} timed steps were recorded")
        self._records.setdefault(arm.name, []).append(kept)
        wrong = self._bench.checker.compare(graph.ids, arm.out, tp=self._spec.tp)
        self._mismatched[arm.name] = self._mismatched.get(arm.name, 0) + wrong

    def _added(self, name: str) -> dict[str, float | None]:
        """Of each round's own difference to the step without lookups."""
        return percentiles(np.subtract(self._times_us[name], self._times_us["none"]))

    def _added_of_percentiles(self, name: str) -> dict[str, float]:
        """The difference of the two arms' percentiles, which rounds that happen to differ do not widen."""
        mine, base = self._times_us[name], self._times_us["none"]
        return {f"p{q}": round(float(np.percentile(mine, q) - np.percentile(base, q)), 1) for q in (50, 99)}

    def result(self, arm: PathArm, windows_ms: tuple[float, float]) -> dict[str, Any]:
        records = np.concatenate(self._records[arm.name])
        owned, hits, repeats = (records[n].sum(axis=0) for n in ("owned", "hits", "repeats"))
        missed = records["misses"].sum(axis=1) > 0
        first_read = records["first_read_ns"][missed] / 1e3
        if self._spec.tp == 1 and self._spec.tokens == 128:
            self._bench.first_read_us.extend(first_read.tolist())
            self._bench.first_resolved_us.extend((records["first_resolved_ns"] / 1e3).tolist())
        step_us = float(np.median(self._times_us["none"]))
        stocks = {name: self._added(name) for name in ("stock", "sorted")}
        better = min(stocks.values(), key=lambda added: added["p50"] or 0.0)
        added = self._added(arm.name)
        result = {
            "trace": self._spec.trace,
            "source": arm.name,
            "tokens": self._spec.tokens,
            "tp": self._spec.tp,
            "cache_rows": self._bench.settings.cache_rows,
            "split": _SPLIT,
            "window_ms": round(windows_ms[0], 4),
            "second_window_ms": round(windows_ms[1], 4),
            "hit_rate": round(float((hits + repeats).sum() / owned.sum()), 4),
            "step_ms": round(step_us / 1e3, 4),
            "added_us": added,
            "stock_added_us": better,
            "stock_unsorted_added_us": stocks["stock"],
            "stock_sorted_added_us": stocks["sorted"],
            "net_of_stock_percent": round(100 * ((added["p50"] or 0.0) - (better["p50"] or 0.0)) / step_us, 3),
            "step_p99_minus_p50_us": round(float(np.percentile(self._times_us["none"], 99)) - step_us, 1),
            "added_of_percentiles_us": self._added_of_percentiles(arm.name),
            "steps": len(self._times_us[arm.name]),
            "pages": [round(float(p), 1) for p in records["pages"].mean(axis=0)],
            "first_read_us": percentiles(first_read),
            "first_layer_resolved_us": percentiles(records["first_resolved_ns"] / 1e3),
            "first_layer_ready_us": percentiles(records["first_ready_ns"] / 1e3),
            "ready_us": percentiles(records["ready_ns"] / 1e3),
            "mismatched_rows": self._mismatched[arm.name],
        }
        log(
            f"  {arm.name}: hit {result['hit_rate']} added {added} stock {stocks} step {result['step_ms']} ms "
            f"window {result['window_ms']} ms ready {result['first_layer_ready_us']} pages {result['pages']}"
        )
        return result
