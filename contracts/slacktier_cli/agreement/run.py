# SPDX-License-Identifier: Apache-2.0
"""Runs the cases on an emulated engine of its own, one after the other, each from empty caches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop

from slacktier.errors import ConfigError
from slacktier_cli.agreement.cases import Case, budget, calibration, predicted
from slacktier_cli.agreement.judge import Agreement, Load, Measured, judge, load_of
from slacktier_cli.demo.server import ServeOptions, ServerControl, running_server
from slacktier_cli.demo.server_report import ServerReport
from slacktier_cli.demo.sessions import ReplayLimits, Workload
from slacktier_cli.demo.tables import StagedTable, TableStore
from slacktier_cli.demo.traffic import run_traffic
from slacktier_cli.demo.workloads import load_workload
from slacktier_cli.interruption import interrupted_by_sigterm
from slacktier_cli.progress import byte_progress
from slacktier_cli.replay.client import CompletionClient
from slacktier_rowids.models import load_hasher
from slacktier_rowids.tokenizer import V4Tokenizer

# Little prefill: what is compared are decode steps.
LIMITS: Final = ReplayLimits(history_tokens=64, turn_tokens=32, output_tokens=64)
_FIRST_TOKEN: Final = 1000  # an ordinary id; run r's prompts begin with 1000 + r
_PROFILE: Final = "v41-h200"


@dataclass(frozen=True, slots=True)
class Settings:
    """out holds tables and the server's log; seconds are measured after warm_seconds of the same traffic."""

    out: Path
    sessions: tuple[int, ...]
    seconds: float
    warm_seconds: float
    table_bytes: int
    trace: Path | None
    tp: int
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was found."""

    loads: tuple[Load, ...]
    agreements: tuple[Agreement, ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the cases are run with."""

    store: TableStore
    tables: tuple[StagedTable, ...]
    workload: Workload


def prepare(settings: Settings) -> Prepared:
    """Tables and workload; shows its own progress. Raises ConfigError before anything is written for bad settings."""
    store = TableStore(settings.out / "tables", table_bytes=settings.table_bytes, seed=settings.seed)
    tokenizer = V4Tokenizer.load()
    workload = load_workload(
        settings.trace, users=max(settings.sessions), seed=settings.seed, encode=tokenizer.encode,
        vocab_size=tokenizer.vocab_size,
    )  # fmt: skip
    try:
        store.directory.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--out {settings.out}: {exc.strerror}") from exc
    store.check_space()
    with byte_progress() as progress:
        return Prepared(store, store.prepare(progress), workload)


def run(settings: Settings, prepared: Prepared, told: Callable[[str, float], None]) -> Result:
    """All cases; `told` hears the case that starts and the share of cases that are done.

    raises  SlackTierError if the engine fails
    """
    store = prepared.store
    lookups = load_hasher(store.layout.config).layout.columns // settings.tp
    options = ServeOptions(
        prepared.tables, store.config_path, settings.tp, _PROFILE, settings.out / "server.log",
        settings.out / "lookups.npz", max(settings.sessions),
    )  # fmt: skip
    loop = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with interrupted_by_sigterm(), running_server(options) as server, loop as runner:
        client = CompletionClient(server.endpoint)
        bench = _Bench(settings, prepared, client, ServerControl(server, client), told)
        return runner.run(bench.all(lookups))


class _Bench:
    """The cases on one running server."""

    def __init__(
        self, settings: Settings, prepared: Prepared, client: CompletionClient, control: ServerControl,
        told: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        self._settings, self._workload, self._client, self._control = settings, prepared.workload, client, control
        self._layer_ids = [table.layer_id for table in prepared.tables]
        self._told = told
        self._done = 0
        self._model = ""

    async def all(self, lookups_per_session: int) -> Result:
        self._model = await self._control.wait_ready()
        plans = [
            (calibration(n, rows), predicted(n, rows))
            for n in self._settings.sessions
            for rows in [budget(n, lookups_per_session)]
        ]
        total = sum(len(first) + len(then) for first, then in plans)
        loads, agreements = [], []
        for first, then in plans:
            load = load_of([await self._case(case, total) for case in first])
            loads.append(load)
            agreements += judge(load, [await self._case(case, total) for case in then])
        return Result(tuple(loads), tuple(agreements))

    async def _case(self, case: Case, total: int) -> Measured:
        """One case's traffic: placed, warmed, counted."""
        self._told(case.name, self._done / total)
        await self._control.wait_idle()
        await self._place(case)
        users = self._workload.users(case.sessions, round_index=0, seed=self._settings.seed, limits=LIMITS)
        traffic = run_traffic(
            self._client, users, model=self._model, first_token=_FIRST_TOKEN + self._done,
            seconds=self._settings.warm_seconds + self._settings.seconds, at_end=self._control.report,
        )  # fmt: skip
        (_, report), _ = await asyncio.gather(traffic, self._forget_warm_up())
        self._done += 1
        return Measured(case, report)

    async def _forget_warm_up(self) -> ServerReport:
        await asyncio.sleep(self._settings.warm_seconds)
        return await self._control.report(reset=True)

    async def _place(self, case: Case) -> None:
        """Empty the caches, then put sources, cache rows and this load's step times in force."""
        empty = [{"layer_id": layer_id, "cache_rows": 0} for layer_id in self._layer_ids]
        await self._client.call("POST", "/slacktier/control", {"layers": empty})
        source: dict[str, Any] = {"tier": "dram"}
        if case.disk is not None:
            numbers = {"a_us": case.disk.a_us, "b_us": case.disk.b_us, "c_us": case.disk.c_us}
            source = {"tier": "emulated", "delay": numbers, "device": f"agreement-{case.disk.name}"}
        layers = [
            {"layer_id": layer_id, "cache_rows": rows, **source}
            for layer_id, rows in zip(self._layer_ids, case.cache_rows, strict=True)
        ]
        # Step times of the whole load, also in steps where some sessions prefill.
        await self._client.call(
            "POST", "/slacktier/control", {"layers": layers, "profile": {"sessions": case.sessions}}
        )
