# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: each its own stripe and, with NCCL, its own GPU and the engine's reduction inside the graph.

On one GPU (or none) the reduction goes through gloo outside the graph, and only bits are compared. The baseline is the
engine's per-rank layout: each rank gathers its contiguous shard from pinned memory, and the same sum follows.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from slacktier.delay import DelayModel
from slacktier.errors import SlackTierError, TierUnavailableError
from slacktier_engine.decode_bench.arms import (
    CHUNK_TOKENS,
    COLUMNS,
    DIM,
    Arm,
    NoLookups,
    PathArm,
    PathSetup,
    Step,
    StockArm,
)
from slacktier_engine.decode_bench.cells import SOURCES
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS
from slacktier_engine.decode_bench.inputs import StepInputs, chunk_ids, step_ids
from slacktier_engine.decode_bench.measure import Turns, percentiles
from slacktier_engine.decode_bench.regions import RegionSources
from slacktier_engine.decode_bench.run import DecodeBench, log
from slacktier_engine.decode_bench.workload import TokenStream, build_workload
from slacktier_engine.step import GpuStepPath
from slacktier_native.core import set_delay
from slacktier_native.sources import AnySource, MemorySpec

_WINDOW_MS = (0.27, 1.8)
_STEP_MS = 2.6


@dataclass(frozen=True)
class RankPlan:
    """open_bench is called in each process with its rank and must be importable there."""

    world: int
    nccl: bool
    open_bench: Callable[[int, int], tuple[DecodeBench, TokenStream]]
    tokens: tuple[int, ...] = (8, 32, 128, 256)
    sources: tuple[str, ...] = ("dram", "rdma-delay")
    exact_steps: int = 60
    exact_tokens: int = 256
    exact_chunks: int = 2
    shared_folder: str = ""


def run(plan: RankPlan, timeout_s: float = 540.0) -> dict[str, Any]:
    """Start the ranks and return rank 0's report; raises what a rank raised."""
    context = multiprocessing.get_context("spawn")
    reports = context.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="slacktier-ranks-") as folder:
        started = multiprocessing.start_processes(
            _rank_main, args=(plan, folder, reports), nprocs=plan.world, join=False, start_method="spawn"
        )
        until_s = time.monotonic() + timeout_s
        done = False
        while not done and time.monotonic() < until_s:
            done = started.join(timeout=1.0)  # True once all have ended; raises what one of them raised
        if not done:
            for process in started.processes:
                process.kill()
            raise TierUnavailableError(
                f"ranks: not done after {timeout_s:g} s", tier="", operation="run", target="ranks", errno=0
            )
        found: dict[str, Any] = reports.get()
    return found


def _rank_main(rank: int, plan: RankPlan, folder: str, reports: Any) -> None:
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    bench, stream = plan.open_bench(rank, plan.world)
    backend = "nccl" if plan.nccl else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=plan.world)
    host = dist.new_group(backend="gloo")
    try:
        report = Ranks(plan, rank, bench, stream, host).report()
        dist.barrier(group=host)
    finally:
        dist.destroy_process_group()
        bench.close()
    if rank == 0:
        reports.put(report)


def check_together(path: GpuStepPath, host: Any) -> None:
    """Raise on every rank what a step failed with on any; a rank alone would go on with the others' poison.

    host  a group of the same ranks whose collectives do not touch the device
    """
    mine = ""
    try:
        path.check()
    except SlackTierError as exc:
        mine = f"{type(exc).__name__}: {exc}"
    everyone: list[str] = [""] * dist.get_world_size(host)
    dist.all_gather_object(everyone, mine, group=host)
    if any(everyone):
        said = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(everyone) if text)
        raise TierUnavailableError(said, tier="", operation="step", target="ranks", errno=0)


class _ReduceOnly:
    """The same step with the reduction but without lookups."""

    name = "none"

    def __init__(self, out: list[torch.Tensor], reduce: Callable[[torch.Tensor], None]) -> None:
        self._out, self._reduce = out, reduce

    def begin(self, ids: torch.Tensor) -> None: ...

    def layer(self, index: int, ids: torch.Tensor) -> None:
        self._reduce(self._out[index])


class Ranks:
    """One rank's part; all ranks call the same methods in the same order."""

    def __init__(self, plan: RankPlan, rank: int, bench: DecodeBench, stream: TokenStream, host: Any) -> None:
        self.plan, self.rank, self.bench, self.stream, self._host = plan, rank, bench, stream, host
        self._meeting = torch.zeros(1, device=bench.device.torch)
        self.reduce: Callable[[torch.Tensor], None] | None = self._all_reduce if plan.nccl else None
        rows, world = bench.table.row_count, plan.world
        self.shard = (rows * rank // world, rows * (rank + 1) // world)

    def _gather(self, mine: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.plan.world
        dist.all_gather_object(everyone, mine, group=self._host)
        return everyone

    def _from_first(self, value: Any) -> Any:
        shared = [value]
        dist.broadcast_object_list(shared, group=self._host)
        return shared[0]

    def barrier(self) -> None:
        """The processes meet; their devices need not."""
        dist.barrier(group=self._host)

    @staticmethod
    def _all_reduce(out: torch.Tensor) -> None:
        dist.all_reduce(out)

    def _reduced(self, out: torch.Tensor) -> torch.Tensor:
        """Of what a graph without a reduction left; exact, since one rank owns each row."""
        if self.reduce is not None:
            return out
        total = out.float().cpu()
        dist.all_reduce(total, group=self._host)
        return total.to(torch.bfloat16)

    def _setup(self, tokens: int, cache_rows: int) -> PathSetup:
        readers = self.bench.settings.readers
        return PathSetup(
            tokens, (cache_rows, cache_rows), rank=self.rank, tp=self.plan.world, readers=readers,
            cpus=self.bench.cpus,
        )  # fmt: skip

    def _source(self, name: str) -> list[AnySource]:
        model = SOURCES[name]
        device = f"bench-{name}-rank{self.rank}"
        pages = self.bench.table.pages
        return [MemorySpec(pages, device, model) if model else MemorySpec(pages)] * 2

    def _arm(self, name: str, setup: PathSetup) -> PathArm:
        return PathArm(name, self.bench.memory("dram"), setup, self.bench.device, self.reduce)

    def _stock(self, name: str, out: list[torch.Tensor], sort_ids: bool = False) -> StockArm:
        return StockArm(name, self.bench.stock, self.bench.table, self.shard, sort_ids, out, self.reduce)

    def report(self) -> dict[str, Any]:
        """Everything, in the order in which all ranks do it."""
        self._log(f"ranks meet: {self.plan.world}, NCCL {self.plan.nccl}")
        found: dict[str, Any] = {"ranks": self.plan.world, "machine": self.bench.device.name, "nccl": self.plan.nccl}
        found["exact"] = [self.exact(source) for source in self.plan.sources]
        found["stalls"] = self.stalls()
        if self.plan.nccl:
            found["cells"] = [self.cell(tokens, source) for tokens in self.plan.tokens for source in self.plan.sources]
            if self.plan.shared_folder:
                found["instances"] = self.instances()
        return found

    # ---- bits ----

    def _compare(self, ids: torch.Tensor, out: list[torch.Tensor]) -> int:
        wrong = 0
        for index in range(len(LOOKUP_LAYERS)):
            flat = ids[:, index].reshape(-1)
            expected = torch.empty((flat.numel(), DIM), dtype=torch.bfloat16, device=out[index].device)
            stock = self._stock("stock", [expected, expected])
            stock.layer(index, ids)
            mine = self._reduced(out[index][: flat.numel()])
            theirs = self._reduced(expected)
            wrong += int((mine.view(torch.int16) != theirs.view(torch.int16)).any(dim=1).sum())
        return wrong

    def exact(self, source: str) -> dict[str, Any]:
        """Decode steps and prefill chunks over a cache of 2,048 rows per layer."""
        plan, bench = self.plan, self.bench
        work = build_workload(
            self.stream, slots=plan.exact_tokens, steps=plan.exact_steps, warm_tokens=plan.exact_chunks * CHUNK_TOKENS
        )
        arm = self._arm(source, self._setup(plan.exact_tokens, 2048))
        arm.use(self._source(source))
        wrong = rows = 0
        for first in range(0, plan.exact_chunks * CHUNK_TOKENS, CHUNK_TOKENS):
            ids = chunk_ids(bench.hasher, self.stream, work.warm[first : first + CHUNK_TOKENS], bench.table.row_count)
            on_device = ids.to(bench.device.torch)
            arm.extend(on_device, bench.scratch)
            wrong += self._compare(on_device, bench.scratch)
            rows += ids.numel()
        inputs = StepInputs(self.stream, work.decode, bench.hasher.ngram_size - 1, bench.device.torch)
        x = bench.compute.activations(plan.exact_tokens)
        counts = bench.compute.counts_for(x, (0.05, 0.4), 1.2)
        arm.path.arm()
        step = Step(arm, bench.compute, counts, x, lambda: step_ids(bench.stock, inputs, bench.table.row_count))
        for at in range(plan.exact_steps):
            inputs.load(at)
            arm.path.arm()
            step.replay()
            wrong += self._compare(step.ids, arm.out)
            rows += step.ids.numel()
        check_together(arm.path, self._host)
        evictions = sum(t["evictions"] for t in arm.path.core.stats().values())
        arm.close()
        found = {"source": source, "rows_checked": rows, "mismatched_rows": wrong, "evictions_rank0": evictions}
        self._log(f"exact {found}")
        return found

    # ---- a stalled reader ----

    def stalls(self) -> dict[str, Any]:
        """The last rank's rows come 100 ms late, then not within the time-out."""
        bench, last = self.bench, self.plan.world - 1
        device = f"bench-stall-rank{self.rank}"
        setup = replace(self._setup(8, 0), timeout_s=2.0, lookups_max=8 * COLUMNS)
        arm = self._arm("stall", setup)
        arm.use([MemorySpec(bench.table.pages, device, DelayModel(device, 0, 0, 0))] * 2)
        ids = torch.arange(8 * 2 * COLUMNS, device=bench.device.torch).reshape(8, 2, COLUMNS) * 7919
        ids = torch.remainder(ids, bench.table.row_count)

        def queue() -> torch.Tensor:
            arm.begin(ids)
            for index in range(len(LOOKUP_LAYERS)):
                arm.layer(index, ids)
            return ids

        arm.path.arm()
        graph = bench.device.capture(queue, warm_ups=1)

        def step(delay_us: float) -> tuple[float, str]:
            set_delay(device, DelayModel(device, delay_us if self.rank == last else 0.0, 0, 0))
            self.barrier()
            arm.path.arm()
            bench.device.synchronize()
            begin = bench.device.instant()
            graph.replay()
            end = bench.device.instant()
            bench.device.reach(end)
            took_ms = bench.device.elapsed_us(begin, end) / 1e3
            try:
                check_together(arm.path, self._host)
            except TierUnavailableError as exc:
                return took_ms, str(exc)
            return took_ms, ""

        step(0.0)
        late_ms, late_error = step(100e3)
        wrong = self._compare(ids, arm.out)
        never_ms, never_error = step(30e6)
        step(0.0)
        after = self._compare(ids, arm.out)
        everyone = self._gather({"late_ms": round(late_ms, 1), "never_ms": round(never_ms, 1), "error": never_error})
        arm.close()
        found = {
            "late": {"error": late_error, "mismatched_rows": wrong}, "ranks": everyone, "mismatched_rows_after": after
        }  # fmt: skip
        self._log(f"stalls {found}")
        return found

    # ---- times ----

    def align(self) -> None:
        """All ranks' streams meet here, so that a step's time is not one rank's late start."""
        dist.all_reduce(self._meeting)

    def cell(self, tokens: int, source: str) -> dict[str, Any]:
        """Added time of the slowest rank, over the same step with the reduction alone."""
        bench, settings = self.bench, self.bench.settings
        steps = settings.blocks * settings.block_steps
        work = build_workload(self.stream, slots=tokens, steps=steps, warm_tokens=settings.warm_tokens)
        arm = self._arm(source, self._setup(tokens, settings.cache_rows // 2))
        bench.extend_all(arm, self.stream, work.warm, tp=self.plan.world, checked=0, rows=bench.table.row_count)
        arm.use(self._source(source))
        inputs = StepInputs(self.stream, work.decode, bench.hasher.ngram_size - 1, bench.device.torch)
        x = bench.compute.activations(tokens)
        counts = bench.compute.counts_for(x, _WINDOW_MS, _STEP_MS)
        counts = self._from_first(counts)  # graphs that reduce together must be alike
        windows_ms = bench.compute.windows_ms(x, counts)
        out = [torch.zeros_like(o) for o in arm.out]
        spare = [torch.zeros_like(o) for o in arm.out]
        arms: list[Arm] = [
            _ReduceOnly(spare, self._all_reduce),
            self._stock("stock", out),
            self._stock("sorted", out, True),
            arm,
        ]
        arm.path.arm()
        made = [
            Step(a, bench.compute, counts, x, lambda: step_ids(bench.stock, inputs, bench.table.row_count))
            for a in arms
        ]
        turns = _AlignedTurns(self, made, inputs, work.prefill)
        wrong = 0
        for block in range(settings.blocks):
            turns.run_block(block * settings.block_steps, settings.block_steps)
            wrong += self._compare(made[-1].ids, arm.out)
        result = self._slowest(turns, source)
        arm.close()
        head = {"trace": "agent", "source": source, "tokens": tokens, "tp": self.plan.world,
                "window_ms": round(windows_ms[0], 4)}  # fmt: skip
        found = head | result | {"mismatched_rows": wrong}
        self._log(f"cell {found}")
        return found

    def _slowest(self, turns: Turns, source: str) -> dict[str, Any]:
        records = turns.records(source)
        everyone = self._gather(
            (turns.times_us, int(records["pages"].sum()), int((records["hits"] + records["repeats"]).sum()),
             int(records["owned"].sum()), percentiles(records["first_ready_ns"] / 1e3))
        )  # fmt: skip
        slowest = {name: np.max([times[name] for times, *_ in everyone], axis=0) for name in turns.times_us}
        added = {name: percentiles(slowest[name] - slowest["none"]) for name in slowest if name != "none"}
        pages = np.array([pages for _, pages, *_ in everyone], np.float64)
        better = min((added["stock"], added["sorted"]), key=lambda a: a["p50"] or 0.0)
        return {
            "step_ms": round(float(np.median(slowest["none"])) / 1e3, 4),
            "hit_rate": round(sum(h for _, _, h, _, _ in everyone) / sum(o for *_, o, _ in everyone), 4),
            "added_us": added[source], "stock_added_us": better, "stock_unsorted_added_us": added["stock"],
            "stock_sorted_added_us": added["sorted"],
            "pages_max_over_mean": round(float(pages.max() / pages.mean()), 4),
            "first_layer_ready_us": [ready for *_, ready in everyone], "steps": len(slowest["none"]),
        }  # fmt: skip

    # ---- two instances on one copy ----

    def instances(self, tokens: int = 32) -> dict[str, Any]:
        """Each rank an instance of its own (all rows, no reduction), reading one copy in a row server's memory."""
        bench, settings = self.bench, self.bench.settings
        owner = RegionSources(bench.table, {"tcp": self.plan.shared_folder}, bench.regions.row_count)
        sources = self._from_first(owner.get("tcp") if self.rank == 0 else None)
        setup = replace(self._setup(tokens, settings.cache_rows // 2), rank=0, tp=1, backend="auto")
        arm = PathArm("tcp", bench.regions.memory(), setup, bench.device)
        rows = bench.regions.row_count
        steps = 4 * settings.block_steps
        work = build_workload(
            self.stream, slots=tokens, steps=steps, warm_tokens=settings.warm_tokens, seed=1 + self.rank
        )
        bench.extend_all(arm, self.stream, work.warm, tp=1, checked=1, rows=rows)
        arm.use(sources)
        inputs = StepInputs(self.stream, work.decode, bench.hasher.ngram_size - 1, bench.device.torch)
        x = bench.compute.activations(tokens)
        counts = bench.compute.counts_for(x, _WINDOW_MS, _STEP_MS)
        made = [
            Step(a, bench.compute, counts, x, lambda: step_ids(bench.stock, inputs, rows)) for a in (NoLookups(), arm)
        ]
        turns = Turns(bench.device, made, inputs.load, lambda *_: 0, _STEP_MS)
        parts: dict[str, Any] = {}
        for at, (name, active) in enumerate((("alone", 0), ("alone", 1), ("together", -1), ("together", -1))):
            self.barrier()
            if active in (-1, self.rank):
                turns.times_us = {key: [] for key in turns.times_us}
                turns.run_block(at * settings.block_steps, settings.block_steps)
                parts.setdefault(name, []).extend(np.subtract(turns.times_us["tcp"], turns.times_us["none"]).tolist())
        self.barrier()
        wrong = bench.checker.compare(made[-1].ids, arm.out, tp=1)
        arm.close()
        mine = {name: percentiles(values) for name, values in parts.items()} | {"mismatched_rows": wrong}
        everyone = self._gather(mine)
        owner.close()
        found = {"tokens": tokens, "source": "tcp", "added_us": everyone}
        self._log(f"instances {found}")
        return found

    def _log(self, text: str) -> None:
        if self.rank == 0:
            log(text)


class _AlignedTurns(Turns):
    """Turns whose steps start together on all ranks."""

    def __init__(self, ranks: Ranks, steps: list[Step], inputs: StepInputs, prefill: tuple[Any, ...]) -> None:
        bench = ranks.bench

        def prepare(arm: Any, step: int) -> int:
            positions = prefill[step]
            for first in range(0, len(positions), CHUNK_TOKENS):
                part = positions[first : first + CHUNK_TOKENS]
                ids = chunk_ids(bench.hasher, ranks.stream, part, bench.table.row_count)
                arm.extend(ids.to(bench.device.torch), bench.scratch)
            return -(-len(positions) // CHUNK_TOKENS)

        super().__init__(bench.device, steps, inputs.load, prepare, _STEP_MS)
        self._ranks = ranks

    def _timed(self, step: Step) -> tuple[Any, Any]:
        self._ranks.barrier()
        self._device.rest(3_000_000)
        self._ranks.align()
        begin = self._device.instant()
        step.replay()
        end = self._device.instant()
        self._device.reach(end)
        return begin, end
