# SPDX-License-Identifier: Apache-2.0
"""A whole run: check, tables, workload, probe, blocks, sweep, decision, report. Each part is one function of another
module; this one only says what follows what and shows progress on stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slacktier.errors import ConfigError, SlackTierError
from slacktier.tiers import Tier
from slacktier_cli.demo.clock_check import ClockCheck, LookupRecording
from slacktier_cli.demo.document import Run, SweepResult, TableFacts, document
from slacktier_cli.demo.limits import Load, choose_block_seconds, choose_limits
from slacktier_cli.demo.placement import place_tables
from slacktier_cli.demo.probe import Probe, probe_disk
from slacktier_cli.demo.results import BlockResult, arm_figures, with_enough_counted
from slacktier_cli.demo.schedule import Block, shuffled_blocks
from slacktier_cli.demo.server import ServeOptions, ServerControl, ServerProcess, running_server
from slacktier_cli.demo.sessions import ReplayLimits, Workload, session_requests
from slacktier_cli.demo.settings import DemoSettings
from slacktier_cli.demo.sweep import sweep_rows
from slacktier_cli.demo.tables import StagedTable, TableStore
from slacktier_cli.demo.traffic import run_traffic
from slacktier_cli.demo.workloads import check_trace, describe_workload, load_workload
from slacktier_cli.machine import available_memory_bytes, describe_machine
from slacktier_cli.progress import byte_progress
from slacktier_cli.replay.client import CompletionClient
from slacktier_emulated.profile import load_profile
from slacktier_native._lib import library
from slacktier_rowids.engram import EngramHasher
from slacktier_rowids.models import load_hasher
from slacktier_rowids.tokenizer import V4Tokenizer

_PROBE_TOKENS: Final = 16_384
_FIRST_TOKEN: Final = 1000  # an ordinary id; block b's prompts begin with 1000 + b
_MEMORY_SPARE_BYTES: Final = 512 << 20


@dataclass(slots=True)
class Stopwatch:
    """Seconds per named part of the run."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the blocks need; load_average is what else the machine was doing, in runnable threads."""

    tables: tuple[StagedTable, ...]
    store: TableStore
    workload: Workload
    probe: Probe
    limits: ReplayLimits
    block_seconds: float
    load_average: float


@dataclass(frozen=True, slots=True)
class Served:
    """What the blocks gave."""

    blocks: tuple[BlockResult, ...]
    backend: str
    backend_reason: str


def run_demo(settings: DemoSettings, console: Console) -> dict[str, Any]:
    """Run everything and write report.json and report.html to the output directory; returns the report.

    console  for progress and the line that each part begins with, on stderr
    raises   ConfigError before anything is written if the input is bad, the disk too small or the build missing
    """
    watch = Stopwatch()
    store = _check(settings)
    prepared = _prepare(settings, store, watch, console)
    served, recording = _serve(settings, prepared, watch, console)
    figures = arm_figures(settings.arms, served.blocks, settings.cache_rows)
    clock_arm, clock = _check_clock(served.blocks, recording, watch)
    sweep = _sweep(settings, prepared.tables, served.blocks, watch, console)
    placement = place_tables(
        figures, row_counts=[table.full_rows for table in prepared.tables],
        row_bytes=prepared.tables[0].payload_bytes + prepared.tables[0].scale_bytes,
        ranks=settings.tp, cache_rows=settings.cache_rows, slo_pct=settings.slo_pct,
    )  # fmt: skip
    report = document(
        Run(
            tables=tuple(_facts(table) for table in prepared.tables),
            figures=figures, placement=placement, clock_arm=clock_arm, clock=clock, sweep=sweep,
            backend=served.backend, backend_reason=served.backend_reason,
            machine=describe_machine(settings.out),
            workload=describe_workload(prepared.workload, prepared.limits),
            settings=_described(settings, prepared), timings=watch.seconds,
        )
    )  # fmt: skip
    _write(settings.out, report)
    if not settings.keeps_tables:
        store.remove()
    return report


def _check(settings: DemoSettings) -> TableStore:
    """What can be found wrong without reading the workload or writing anything."""
    if settings.trace is not None:
        check_trace(settings.trace)
    library()
    store = TableStore(settings.tables_directory, table_bytes=settings.table_bytes, seed=settings.seed)
    layer_ids = load_profile(settings.profile).layer_ids
    if not set(store.layer_ids) <= set(layer_ids):
        raise ConfigError(f"profile {settings.profile}: it has layers {layer_ids}, the tables {store.layer_ids}")
    _check_memory(settings)
    return store


def _make_room(settings: DemoSettings, store: TableStore) -> None:
    """The output directory, with enough space for the tables."""
    if settings.is_fresh:
        store.remove()
    try:
        settings.tables_directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--out {settings.out}: {exc.strerror or exc}") from exc
    store.check_space()


def _check_memory(settings: DemoSettings) -> None:
    """The DRAM arm holds both regions in memory."""
    needed, there = int(settings.table_bytes * 1.05) + _MEMORY_SPARE_BYTES, available_memory_bytes()
    if 0 < there < needed:
        raise ConfigError(
            f"the DRAM arm needs {needed / 2**30:.1f} GiB of memory for both tables, {there / 2**30:.1f} GiB are there",
            hint="--size makes smaller tables",
        )


def _prepare(settings: DemoSettings, store: TableStore, watch: Stopwatch, console: Console) -> Prepared:
    load_average = os.getloadavg()[0]
    tokenizer = V4Tokenizer.load()
    with watch.part("workload"), console.status("reading the workload"):
        workload = load_workload(
            settings.trace, users=settings.sessions, seed=settings.seed, encode=tokenizer.encode,
            vocab_size=tokenizer.vocab_size,
        )  # fmt: skip
    console.print(f"workload: {workload.name}, {len(workload.sessions):,} sessions, {workload.token_count:,} tokens")
    _make_room(settings, store)
    with watch.part("tables"), byte_progress() as progress:
        tables = store.prepare(progress)
    for table in tables:
        console.print(
            f"layer {table.layer_id}: {table.rows:,} rows, scaled from {table.full_rows:,}"
            + (", staged by an earlier run" if table.was_reused else "")
        )
    with watch.part("probe"):
        probe = _probe(settings, store, tables, workload)
    load = Load(
        settings.sessions, settings.output_tokens, _rows_per_token(store, settings.tp), probe.tokens_per_s,
        probe.pages_per_s,
    )  # fmt: skip
    seconds = settings.block_seconds or choose_block_seconds(load)
    limits = choose_limits(load, seconds, history=settings.history_tokens, turn=settings.turn_tokens)
    console.print(
        f"disk: {probe.text} ({probe.backend}); blocks of {seconds:g} s, sessions entered with "
        f"{limits.history_tokens} tokens, turns of up to {limits.turn_tokens}"
    )
    return Prepared(tables, store, workload, probe, limits, seconds, load_average)


def _rows_per_token(store: TableStore, tp: int) -> int:
    layout = load_hasher(store.layout.config).layout
    return max(1, len(store.layer_ids) * layout.columns // tp)


def _probe(settings: DemoSettings, store: TableStore, tables: tuple[StagedTable, ...], workload: Workload) -> Probe:
    hasher = load_hasher(store.layout.config)
    if not isinstance(hasher, EngramHasher):
        raise ConfigError("the demo's model has no Engram tables")
    limits = ReplayLimits(1 << 20, 1 << 20, settings.output_tokens)
    prompts = (next(session_requests(session, 0, limits)).prompt for session in workload.sessions)
    collected: list[Any] = []
    while sum(prompt.size for prompt in collected) < _PROBE_TOKENS and (prompt := next(prompts, None)) is not None:
        collected.append(prompt)
    return probe_disk(tables, hasher, np.concatenate(collected)[:_PROBE_TOKENS], tp=settings.tp)


def _serve(settings: DemoSettings, prepared: Prepared, watch: Stopwatch, console: Console) -> tuple[Served, Path]:
    recording = settings.out / "lookups.npz"
    options = ServeOptions(
        prepared.tables, prepared.store.config_path, settings.tp, settings.profile, settings.out / "server.log",
        recording, settings.sessions,
    )  # fmt: skip
    # uvloop halves the client's CPU time per token, which matters on cores that it shares with the server.
    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with watch.part("blocks"), running_server(options) as server, loop as runner:
        served = runner.run(_blocks(settings, prepared, server, console))
    return served, recording


async def _blocks(settings: DemoSettings, prepared: Prepared, server: ServerProcess, console: Console) -> Served:
    client = CompletionClient(server.endpoint)
    control = ServerControl(server, client)
    with console.status("starting the server"):
        model = await control.wait_ready()
    backend, reason = await control.backend()
    blocks = shuffled_blocks(settings.arms, settings.blocks, seed=settings.seed)
    results: list[BlockResult] = []
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("blocks", total=len(blocks))
        for number, block in enumerate(blocks):
            bar.update(task, description=f"block {block.arm.name}")
            try:
                results.append(await _block(settings, prepared, client, control, block, number, model))
            except SlackTierError:
                server.check()  # if it is gone, that is the better thing to say
                raise
            bar.advance(task)
    return Served(with_enough_counted(results), backend, reason)


async def _block(
    settings: DemoSettings, prepared: Prepared, client: CompletionClient, control: ServerControl, block: Block,
    number: int, model: str,
) -> BlockResult:  # fmt: skip
    """One arm's turn, from an idle server with empty caches."""
    await control.wait_idle()
    layer_ids = [table.layer_id for table in prepared.tables]
    await control.place(block.arm, layer_ids, settings.cache_rows)
    await control.report(reset=True)
    users = prepared.workload.users(
        settings.sessions, round_index=block.round_index, seed=settings.seed, limits=prepared.limits
    )
    traffic, report = await run_traffic(
        client, users, model=model, first_token=_FIRST_TOKEN + number, seconds=prepared.block_seconds,
        at_end=control.report,
    )  # fmt: skip
    return BlockResult(block.round_index, block.arm, traffic, report)


def _check_clock(
    blocks: tuple[BlockResult, ...], recording: Path, watch: Stopwatch
) -> tuple[str, dict[int, ClockCheck]]:
    """The first cached block that looked anything up against a plain CLOCK."""
    cached = next((block for block in blocks if block.arm.is_cached), None)
    if cached is None:
        return "", {}
    with watch.part("clock simulation"):
        lookups = LookupRecording(recording)
        first, end = cached.server.first_step, cached.server.end_step
        return cached.arm.name, {layer_id: lookups.check(layer_id, first, end) for layer_id in lookups.layer_ids}


def _sweep(
    settings: DemoSettings, tables: tuple[StagedTable, ...], blocks: tuple[BlockResult, ...], watch: Stopwatch,
    console: Console,
) -> SweepResult | None:  # fmt: skip
    """Check what the blocks left of the rows that a run must check; None if they left nothing."""
    missing = settings.rows_checked_min - sum(block.server.rows_checked for block in blocks)
    if missing <= 0:
        return None
    with watch.part("sweep"), Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("checking more rows", total=missing)
        return sweep_rows(tables, missing, seed=settings.seed, progress=lambda done: bar.update(task, completed=done))


def _facts(table: StagedTable) -> TableFacts:
    return TableFacts(table.layer_id, table.rows, table.full_rows, table.region_bytes, table.was_reused)


def _described(settings: DemoSettings, prepared: Prepared) -> dict[str, Any]:
    """Settings as they were in force."""
    return {
        "sessions": settings.sessions,
        "blocks": settings.blocks,
        "block_seconds": prepared.block_seconds,
        "tp": settings.tp,
        "seed": settings.seed,
        "profile": settings.profile,
        "cache_rows": settings.cache_rows,
        "slo_pct": settings.slo_pct,
        "table_bytes": settings.table_bytes,
        "disk": prepared.probe.text,
        "load_average": round(prepared.load_average, 2),
        "probe_tokens_per_s": round(prepared.probe.tokens_per_s, 1),
        "probe_pages_per_s": round(prepared.probe.pages_per_s, 1),
        "emulated_arms": [arm.name for arm in settings.arms if Tier.EMULATED in (arm.first.tier, arm.later.tier)],
    }


def _write(out: Path, report: dict[str, Any]) -> None:
    from slacktier_cli.demo.page import render_page

    (out / "report.json").write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "report.html").write_text(render_page(report), encoding="utf-8")
