# SPDX-License-Identifier: Apache-2.0
"""The input of `slacktier plan`: measured windows, miss curves and devices as a file, turned into a Problem.

Every key that holds a quantity ends in its unit; unknown keys, other units, NaN and negative numbers are refused.
docs/window-rule.md explains the keys, docs/examples/plan/ holds files to start from.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slacktier.errors import ConfigError
from slacktier.miss_curves import MissSet, MissTable
from slacktier.read_model_file import Count, Number, Positive, ReadSpec
from slacktier.tiers import Tier
from slacktier.window_fit import WindowRow, WindowTable
from slacktier.window_model import GIB, HOST_CACHE_READ, LAYER_COUNT_MAX, Device, Layer, MissCurve, Problem


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _layer_range(value: object) -> object:
    """A layer id, or `first-last` for a table whose columns are split over many layers."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("expected a layer id or a range such as 0-41")
    if isinstance(value, int):
        if value < 0:
            raise ValueError("expected a layer id >= 0")
        return (value, value)
    match = re.fullmatch(r"(\d+)-(\d+)", value)
    if match is None or int(match[1]) > int(match[2]):
        raise ValueError("expected a layer id or a range such as 0-41")
    return (int(match[1]), int(match[2]))


class TableSpec(_Part):
    """One layer's table, or with a range one table whose columns are split by layer: row_bytes is one layer's part."""

    layers: Annotated[tuple[int, int], BeforeValidator(_layer_range)]
    rows: Count
    row_bytes: Count
    misses: str
    tiers: frozenset[Tier] = frozenset()


class WindowSpec(_Part):
    """Windows measured at one load."""

    sessions: Count
    step_ms: Positive
    window_ms: dict[int, Number]


class MissSpec(_Part):
    """A miss curve measured at one load: pages of one rank and step, or a hit rate of them, against cache rows."""

    sessions: Count
    pages: dict[int, Number] | None = None
    uncached_pages: Number | None = None
    hit_rate: dict[int, Number] | None = None

    def curve(self) -> MissCurve:
        if self.pages is not None and self.uncached_pages is None and self.hit_rate is None:
            return MissCurve(tuple(self.pages.items()))
        if self.pages is None and self.uncached_pages is not None:
            return MissCurve.from_hit_rates(self.uncached_pages, self.hit_rate or {})
        raise ConfigError("expected either pages, or uncached_pages and hit_rate")


class DeviceSpec(_Part):
    """A place for tables; `units` equal disks or NICs that the ranks spread over."""

    name: Annotated[str, Field(min_length=1)]
    tier: Tier
    read: ReadSpec
    units: Count = 1
    instances: Count = 1
    capacity_gib: Number | None = None
    reads_per_s: Positive | None = None
    cost_per_gib: Number = 0.0

    def device(self) -> Device:
        return Device(
            self.name,
            self.tier,
            self.read.read_model(),
            self.units,
            self.instances,
            None if self.capacity_gib is None else int(self.capacity_gib * GIB),
            self.reads_per_s,
            self.cost_per_gib,
        )


class CacheSpec(_Part):
    """GPU cache in rows of one rank, all layers together; second level in host memory, all ranks together."""

    gpu_rows: Annotated[int, Field(strict=True, ge=0)] = 0
    host_gib: Number = 0.0
    host_read: ReadSpec = ReadSpec.of(HOST_CACHE_READ)


class PlanFile(_Part):
    """The whole file."""

    model: str
    about: str = ""
    sessions: Count
    ranks: Count = 1
    s_ms: Number = 0.0
    kappa_ms: Number = 0.0
    margin_ms: Number = 0.0
    slo_pct: Number = 1.0
    unified_memory: bool = False
    cache: CacheSpec = CacheSpec()
    windows: Annotated[tuple[WindowSpec, ...], Field(min_length=1)]
    windows_between_layers: Literal["refuse", "linear"] = "refuse"
    tables: Annotated[tuple[TableSpec, ...], Field(min_length=1)]
    misses: dict[str, Annotated[tuple[MissSpec, ...], Field(min_length=1)]]
    devices: Annotated[tuple[DeviceSpec, ...], Field(min_length=1)]

    def problem(self, sessions: int | None = None) -> tuple[Problem, tuple[str, ...]]:
        """The problem at this load (the file's own if None) and what was assumed to get there.

        Raises ConfigError for whatever the file's own shape could not show: holes, a rising curve, unknown names.
        """
        load = self.sessions if sessions is None else sessions
        notes: list[str] = []
        table = self._window_table()
        windows = table.at(load)
        if load > table.sessions_max:
            notes.append(f"windows of {table.sessions_max} sessions taken for {load}; real ones are longer")
        misses = self._miss_set()
        layers: list[Layer] = []
        for spec in self.tables:
            curve, note = misses.curve(spec.misses, load)
            notes += [note] if note and note not in notes else []
            for layer_id in range(spec.layers[0], spec.layers[1] + 1):
                window = windows.windows_ms[layer_id]
                layers.append(Layer(layer_id, window, curve, spec.rows, spec.row_bytes, spec.tiers))
        problem = Problem(
            layers=tuple(layers),
            devices=tuple(device.device() for device in self.devices),
            step_ms=windows.step_ms,
            ranks=self.ranks,
            s_ms=self.s_ms,
            kappa_ms=self.kappa_ms,
            slo_pct=self.slo_pct,
            cache_rows=self.cache.gpu_rows,
            host_cache_bytes=int(self.cache.host_gib * GIB),
            host_read=self.cache.host_read.read_model(),
            margin_ms=self.margin_ms,
        )
        return problem, tuple(notes)

    def _layer_ids(self) -> list[int]:
        ids = [k for spec in self.tables for k in range(spec.layers[0], spec.layers[1] + 1)]
        if len(ids) > LAYER_COUNT_MAX:
            raise ConfigError(f"tables: {len(ids)} lookup layers, expected at most {LAYER_COUNT_MAX}")
        return ids

    def _window_table(self) -> WindowTable:
        """Windows of every lookup layer; those between two probed layers on a line where the file says so."""
        ids = self._layer_ids()
        rows = []
        for spec in self.windows:
            known = dict(sorted(spec.window_ms.items()))
            windows = {k: self._window(spec.sessions, known, k) for k in ids}
            rows.append(WindowRow(spec.sessions, spec.step_ms, windows))
        return WindowTable(tuple(rows))

    def _window(self, sessions: int, known: dict[int, float], layer_id: int) -> float:
        if layer_id in known:
            return known[layer_id]
        below = [k for k in known if k < layer_id]
        above = [k for k in known if k > layer_id]
        if self.windows_between_layers == "linear" and below and above:
            low, high = below[-1], above[0]
            return known[low] + (known[high] - known[low]) * (layer_id - low) / (high - low)
        raise ConfigError(
            f"windows: layer {layer_id} has no window at {sessions} sessions",
            hint="measure it, or set windows_between_layers: linear to draw a line between probed layers",
        )

    def _miss_set(self) -> MissSet:
        tables = {}
        for name, specs in self.misses.items():
            try:
                tables[name] = MissTable({spec.sessions: spec.curve() for spec in specs})
            except ConfigError as exc:
                raise ConfigError(f"misses.{name}: {exc}", hint=exc.hint) from exc
        return MissSet(tables)
