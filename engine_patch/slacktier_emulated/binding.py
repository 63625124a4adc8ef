# SPDX-License-Identifier: Apache-2.0
"""The emulated engine as an instance of tierd: bound at the start, changed between steps, reporting all the while.

The head is asked from a thread of its own; what it says goes through the engine's control call, so that a change is
checked as a whole before any of it is in force. Without a head the engine serves on as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slacktier.api import Access, CurvePoint, InstanceSpec, LayerAccess, LayerFigures, LayerNeed, Report
from slacktier.errors import SlackTierError
from slacktier.metrics import READ_BUCKETS
from slacktier.tiers import Tier
from slacktier_binding.client import TierdAddress, TierdClient
from slacktier_binding.sources import layer_sources
from slacktier_binding.watcher import AccessWatcher
from slacktier_emulated.engine_client import EngineClient
from slacktier_emulated.layers import LayerPlan, Source
from slacktier_emulated.profile import Profile, Schedule
from slacktier_native import rdma_ports
from slacktier_native.rdma import RdmaSpec
from slacktier_native.row_link import RowsSpec
from slacktier_native.sources import AnySource, SourceSpec

REPORT_S: Final = 2.0
_APPLY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class BindingSettings:
    """How this server is an instance of tierd.

    directory  for keys; of this user alone
    wait_s     how long the start waits to be bound
    """

    address: TierdAddress
    spec: InstanceSpec
    directory: Path
    wait_s: float = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """What the instance plans for: sessions at once, and each layer's pages per step against its cache rows."""

    sessions: int
    columns: int
    misses: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def curve(self, layer_id: int, ranks: int) -> tuple[CurvePoint, ...]:
        """As given, else as if no cache helped: every look-up of this rank reads a page."""
        points = self.misses.get(layer_id, ((0, self.sessions * self.columns / ranks),))
        return tuple(CurvePoint(cache_rows=rows, pages=pages) for rows, pages in points)


def instance_spec(
    profile: Profile, tables: dict[int, str], load: Load, *, ranks: int, slo_pct: float, cache_rows: int, node: str,
    ttl_s: float,
) -> InstanceSpec:  # fmt: skip
    """What this engine needs: the profile's step and windows at that load."""
    times = Schedule(profile, tuple(tables)).decode(load.sessions)
    return InstanceSpec(
        node=node, model=profile.model, engine="emulated", step_ms=times.step_ms, ranks=ranks, slo_pct=slo_pct,
        cache_rows=cache_rows, ttl_s=ttl_s,
        layers=tuple(
            LayerNeed(layer_id=layer_id, table=table, window_ms=window_ms, misses=load.curve(layer_id, ranks))
            for (layer_id, table), window_ms in zip(tables.items(), times.windows_ms, strict=True)
        ),
    )  # fmt: skip


def readable_tiers() -> tuple[Tier, ...]:
    """All, but rdma only where this machine has a device: elsewhere a copy on it is passed over for one that is not."""
    return tuple(tier for tier in Tier if tier is not Tier.RDMA or rdma_ports.list_ports())


def _source(spec: AnySource) -> Source:
    if isinstance(spec, RowsSpec | RdmaSpec):
        return Source(spec.tier, (), address=spec.address, token_file=spec.token_file)
    assert isinstance(spec, SourceSpec)  # noqa: S101 - layer_sources makes these two
    return Source(spec.tier, spec.paths, spec.device, spec.delay)


def layer_plans(access: Access, directory: Path) -> tuple[LayerPlan, ...]:
    """What the engine is started with."""
    tiers = readable_tiers()
    return tuple(
        LayerPlan(layer.layer_id, tuple(map(_source, layer_sources(layer, directory, tiers))), layer.cache_rows)
        for layer in sorted(access.layers, key=lambda each: each.layer_id)
    )


def control_body(access: Access, directory: Path) -> dict[str, Any]:
    """The control call that puts an access in force."""
    return {"layers": [_layer_change(layer, directory) for layer in access.layers]}


def _layer_change(layer: LayerAccess, directory: Path) -> dict[str, Any]:
    sources = [_source_change(spec) for spec in layer_sources(layer, directory, readable_tiers())]
    return {"layer_id": layer.layer_id, "sources": sources, "cache_rows": layer.cache_rows}


def _source_change(spec: AnySource) -> dict[str, Any]:
    if isinstance(spec, RowsSpec | RdmaSpec):
        return {"tier": spec.tier.value, "address": spec.address, "token_file": str(spec.token_file)}
    source = _source(spec)
    change: dict[str, Any] = {"tier": source.tier.value, "paths": [str(path) for path in source.paths]}
    if source.delay is not None:
        delay = {"a_us": source.delay.a_us, "b_us": source.delay.b_us, "c_us": source.delay.c_us}
        change |= {"device": source.device, "delay": delay}
    return change


class Bound:
    """An instance that is bound: `plans` to start with, then `run` beside the server."""

    def __init__(self, settings: BindingSettings, say: Callable[[str], None]) -> None:
        """Waits until bound; raises ConfigError where the head refuses, TierUnavailableError when the time is up."""
        self._settings = settings
        self._client = TierdClient(settings.address)
        self._engine: EngineClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watcher = AccessWatcher(self._client, settings.spec, self._apply)
        self.plans = layer_plans(self._watcher.first(settings.wait_s, say), settings.directory)

    def _apply(self, access: Access) -> None:
        """From the watcher's thread: put an access in force between two steps."""
        if self._engine is None or self._loop is None:
            return
        call = self._engine.call("control", control_body(access, self._settings.directory), timeout_s=_APPLY_S)
        asyncio.run_coroutine_threadsafe(call, self._loop).result(_APPLY_S + 1)

    async def run(self, engine: EngineClient) -> None:
        """Follow changes and report, until cancelled."""
        self._engine, self._loop = engine, asyncio.get_running_loop()
        self._watcher.start()
        before: dict[str, Any] | None = None
        try:
            while True:
                await asyncio.sleep(REPORT_S)
                before = await self._report(engine, before)
        finally:
            self._watcher.stop()

    async def _report(self, engine: EngineClient, before: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            now = await engine.call("metrics")
            report = make_report(
                before or now, now, in_force=self._watcher.in_force, ready=engine.is_ready,
                message=engine.error or self._watcher.message,
            )  # fmt: skip
            await asyncio.to_thread(self._client.report, report)
        except SlackTierError:
            return before  # the next report covers this interval as well; the watcher keeps trying the head
        return now

    def leave(self) -> None:
        """Say that the instance is gone; a head that does not answer finds out by its time-to-live."""
        self._watcher.stop()
        try:
            self._client.delete_instance()
        except SlackTierError as exc:
            self._watcher.message = str(exc)


def make_report(
    before: dict[str, Any], now: dict[str, Any], *, in_force: int, ready: bool, message: str
) -> Report:  # fmt: skip
    """What happened between two of the engine's metrics answers."""
    steps = _delta(before["metrics"]["steps"]["decode"], now["metrics"]["steps"]["decode"])
    count = sum(steps["counts"])
    layers = tuple(
        _figures(status, old, new)
        for status, old, new in zip(
            now["status"]["layers"], before["metrics"]["layers"], now["metrics"]["layers"], strict=True
        )
    )
    return Report(
        in_force=in_force, ready=ready, seconds=REPORT_S, steps=count,
        step_ms_mean=1000 * steps["sum"] / count if count else 0.0, message=message[:4096], layers=layers,
    )  # fmt: skip


def _delta(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    counts = [new - old for old, new in zip(before["counts"], now["counts"], strict=True)]
    return {"counts": counts, "sum": max(0.0, now["sum"] - before["sum"])}


def _figures(status: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> LayerFigures:
    tier = Tier(status["tier"])
    reads = _delta(_decode_reads(before, tier, now), _decode_reads(now, tier, now))
    stalls = _delta(before["stalls"], now["stalls"])
    count, stall_count = sum(reads["counts"]), sum(stalls["counts"])
    counted = {name: now[name] - before[name] for name in ("hits", "repeats", "misses", "pages")}
    return LayerFigures(
        layer_id=status["layer_id"], tier=tier, lookups=counted["hits"] + counted["repeats"] + counted["misses"],
        **counted, window_us=1e6 * now["window_s"],
        read_us_mean=1e6 * reads["sum"] / count if count else 0.0, read_us_p99=_p99_us(reads["counts"]),
        stall_us_mean=1e6 * stalls["sum"] / stall_count if stall_count else 0.0,
        stall_us_p99=_p99_us(stalls["counts"]),
    )  # fmt: skip


def _decode_reads(layer: dict[str, Any], tier: Tier, like: dict[str, Any]) -> dict[str, Any]:
    for phase, name, histogram in layer["reads"]:
        if phase == "decode" and name == tier.value:
            found: dict[str, Any] = histogram
            return found
    return {"counts": [0] * len(like["stalls"]["counts"]), "sum": 0.0}


def _p99_us(counts: Sequence[int]) -> float:
    """The upper bound of the bucket that holds the 99th percentile; the largest bound where it lies above all."""
    wanted, seen = 0.99 * sum(counts), 0
    if not wanted:
        return 0.0
    for bound, count in zip((*READ_BUCKETS, READ_BUCKETS[-1]), counts, strict=True):
        seen += count
        if seen >= wanted:
            return 1e6 * bound
    return 1e6 * READ_BUCKETS[-1]
