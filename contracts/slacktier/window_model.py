# SPDX-License-Identifier: Apache-2.0
"""The window rule's nouns and its arithmetic: what is known, and what a given placement costs. Nothing searches here.

All times are milliseconds from the start of the step, read models take microseconds per page, pages are 4 KiB reads of
one rank in one step, cache rows are rows of one rank. Layers act in order of layer id, devices are told apart by name,
so the order in which either is given never matters. The rule is in docs/window-rule.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, PAGE_HEADER, record_bytes_for
from slacktier.tiers import Tier

GIB: Final = 1 << 30
LAYER_COUNT_MAX: Final = 256


def check_number(name: str, value: float, *, above: float | None = None, at_most: float | None = None) -> None:
    """Raise ConfigError unless value is finite, >= 0 (or > above) and <= at_most."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} is {value}, expected a finite number")
    if above is not None and value <= above:
        raise ConfigError(f"{name} is {value:g}, expected a number above {above:g}")
    if above is None and value < 0:
        raise ConfigError(f"{name} is {value:g}, expected a number >= 0")
    if at_most is not None and value > at_most:
        raise ConfigError(f"{name} is {value:g}, expected at most {at_most:g}")


def unique(what: str, values: Iterable[object]) -> None:
    """Raise ConfigError at the first value that comes twice."""
    seen: set[object] = set()
    for value in values:
        if value in seen:
            raise ConfigError(f"{what} {value} is given twice")
        seen.add(value)


@dataclass(frozen=True, slots=True)
class ReadModel:
    """Read time of one layer's pages of one step on one unit of a device: a + b * own and earlier + c * later.

    a_us, b_us, c_us    fixed part; per page of this layer or of an earlier one on the device; per page of a later one
    ranks_per_unit      ranks that shared one disk or NIC when this was fitted; other sharing scales b and c
    pages_min, pages_max, rmse_us   measured range of the layer's own pages and the fit's error; 0 where unknown
    """

    a_us: float
    b_us: float = 0.0
    c_us: float = 0.0
    ranks_per_unit: float = 1.0
    pages_min: float = 0.0
    pages_max: float = 0.0
    rmse_us: float = 0.0

    def __post_init__(self) -> None:
        for name in ("a_us", "b_us", "c_us", "pages_min", "pages_max", "rmse_us"):
            check_number(f"read model: {name}", getattr(self, name))
        check_number("read model: ranks_per_unit", self.ranks_per_unit, above=0)
        if self.pages_max < self.pages_min:
            raise ConfigError(f"read model: measured from {self.pages_min:g} to {self.pages_max:g} pages: a hole")

    @classmethod
    def from_delay(cls, delay: DelayModel, ranks_per_unit: float = 1.0) -> ReadModel:
        """The same numbers as an emulated tier's delay model."""
        return cls(delay.a_us, delay.b_us, delay.c_us, ranks_per_unit=ranks_per_unit)


@dataclass(frozen=True, slots=True)
class MissCurve:
    """Pages that one rank reads in a step against the layer's cache rows: (rows, pages), rising rows, falling pages.

    Straight lines between the points, flat after the last one. The first point is at 0 rows, without a cache.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("miss curve: no points")
        object.__setattr__(self, "points", tuple(sorted((int(rows), float(pages)) for rows, pages in self.points)))
        unique("miss curve: cache size", (rows for rows, _ in self.points))
        if self.points[0][0] != 0:
            raise ConfigError(f"miss curve starts at {self.points[0][0]} rows, expected a point at 0 rows (no cache)")
        for rows, pages in self.points:
            check_number(f"miss curve at {rows} rows: pages", pages)
        for (rows0, pages0), (rows1, pages1) in zip(self.points, self.points[1:], strict=False):
            if pages1 > pages0:
                raise ConfigError(
                    f"miss curve rises: {pages0:g} pages with {rows0} rows, {pages1:g} with {rows1}",
                    hint="more cache never reads more pages; measure the curve on one trace, or with more of it",
                )

    @classmethod
    def from_hit_rates(cls, uncached_pages: float, hit_rates: Mapping[int, float]) -> MissCurve:
        """The curve of a layer that reads uncached_pages without a cache and hits this share of them with one."""
        for rows, rate in hit_rates.items():
            check_number(f"hit rate at {rows} rows", rate, at_most=1)
        points = {0: uncached_pages} | {rows: uncached_pages * (1 - rate) for rows, rate in hit_rates.items()}
        return cls(tuple(points.items()))

    @classmethod
    def flat(cls, pages: float) -> MissCurve:
        """A curve that no cache changes."""
        return cls(((0, pages),))

    def pages(self, rows: float) -> float:
        """Pages per step with this many cache rows."""
        index = bisect_right(self.points, rows, key=lambda point: point[0])
        if index == len(self.points):
            return self.points[-1][1]
        (rows0, pages0), (rows1, pages1) = self.points[index - 1], self.points[index]
        return pages0 + (pages1 - pages0) * (rows - rows0) / (rows1 - rows0)


@dataclass(frozen=True, slots=True)
class Layer:
    """One table, or one layer's columns of a table that is split by column.

    window_ms  compute time before the layer needs its rows; 0 at the input embedding
    misses     pages per step against cache rows, of the slowest rank, at the load to plan for
    row_count, row_bytes  the whole table, all ranks; row_bytes without tag and checksum
    tiers      the tiers that this table may use; empty means any
    """

    layer_id: int
    window_ms: float
    misses: MissCurve
    row_count: int = 0
    row_bytes: int = 264
    tiers: frozenset[Tier] = frozenset()

    def __post_init__(self) -> None:
        check_number(f"layer {self.layer_id}: window_ms", self.window_ms)
        check_number("layer_id", self.layer_id)
        check_number(f"layer {self.layer_id}: row_count", self.row_count)
        check_number(f"layer {self.layer_id}: row_bytes", self.row_bytes, above=0)
        if self.rows_per_page < 1:
            raise ConfigError(f"layer {self.layer_id}: row_bytes is {self.row_bytes}, a record must fit one 4 KiB page")

    @property
    def rows_per_page(self) -> int:
        return (PAGE_BYTES - PAGE_HEADER.size) // record_bytes_for(self.row_bytes, 0)

    @property
    def table_bytes(self) -> int:
        """What the table takes on a tier: data pages with tags and checksums."""
        return -(-self.row_count // self.rows_per_page) * PAGE_BYTES

    @property
    def raw_bytes(self) -> int:
        """What the table takes in an engine that keeps it in host memory."""
        return self.row_count * self.row_bytes


@dataclass(frozen=True, slots=True)
class Device:
    """A place for tables: `units` equal disks or NICs that the ranks spread over, or a node's memory.

    instances    serving instances that read here, this one included; their pages add up
    capacity_bytes, reads_per_s   of all units together; None means not limited
    cost_per_gib  any currency; only its ratio to other devices matters
    """

    name: str
    tier: Tier
    read: ReadModel
    units: int = 1
    instances: int = 1
    capacity_bytes: int | None = None
    reads_per_s: float | None = None
    cost_per_gib: float = 0.0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a device has no name")
        if not isinstance(self.tier, Tier):
            known = ", ".join(Tier)
            raise ConfigError(f"device {self.name}: unknown tier {self.tier!r}, expected one of {known}")
        for name in ("units", "instances"):
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"device {self.name}: {name} is {getattr(self, name)}, expected a whole number")
            check_number(f"device {self.name}: {name}", getattr(self, name), above=0)
        check_number(f"device {self.name}: cost_per_gib", self.cost_per_gib)
        if self.capacity_bytes is not None:
            check_number(f"device {self.name}: capacity_bytes", self.capacity_bytes)
        if self.reads_per_s is not None:
            check_number(f"device {self.name}: reads_per_s", self.reads_per_s, above=0)

    def cost(self, layer: Layer) -> float:
        return layer.table_bytes / GIB * self.cost_per_gib


# One reader thread copying rows from DRAM, H200 box of docs/measurements.md: 211 us for 3,072 rows.
HOST_CACHE_READ: Final = ReadModel(a_us=10.0, b_us=0.07)


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything decide() looks at.

    step_ms       one step with all tables in host memory; the SLO is a percentage of it
    ranks         tensor-parallel ranks; each reads its own pages
    s_ms          time until the step's row ids are resolved; kappa_ms: fixed cost of a step, whatever is placed where
    cache_rows    rows of one rank's GPU cache, all layers together
    host_cache_bytes  second level in host memory, all ranks together; host_read is its read model
    margin_ms     how long before its deadline a read should end; the cache is spent until it does
    cache_steps   the cache is dealt out in 1/cache_steps of the budget
    """

    layers: tuple[Layer, ...]
    devices: tuple[Device, ...]
    step_ms: float
    ranks: int = 1
    s_ms: float = 0.0
    kappa_ms: float = 0.0
    slo_pct: float = 1.0
    cache_rows: int = 0
    host_cache_bytes: int = 0
    host_read: ReadModel = field(default=HOST_CACHE_READ)
    margin_ms: float = 0.0
    cache_steps: int = 40

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(sorted(self.layers, key=lambda layer: layer.layer_id)))
        object.__setattr__(self, "devices", tuple(sorted(self.devices, key=lambda device: device.name)))
        if not 0 < len(self.layers) <= LAYER_COUNT_MAX:
            raise ConfigError(f"{len(self.layers)} lookup layers, expected 1 to {LAYER_COUNT_MAX}")
        if not self.devices:
            raise ConfigError("no device to place a table on")
        unique("layer", (layer.layer_id for layer in self.layers))
        unique("device", (device.name for device in self.devices))
        check_number("step_ms", self.step_ms, above=0)
        for name in ("ranks", "cache_steps"):
            check_number(name, getattr(self, name), above=0)
        for name in ("s_ms", "kappa_ms", "slo_pct", "cache_rows", "host_cache_bytes", "margin_ms"):
            check_number(name, getattr(self, name))
        for layer in self.layers:
            if layer.window_ms > self.step_ms:
                raise ConfigError(
                    f"layer {layer.layer_id}: window_ms is {layer.window_ms:g}, longer than the step of "
                    f"{self.step_ms:g} ms",
                    hint="windows and steps are in milliseconds",
                )

    @property
    def slo_ms(self) -> float:
        return self.step_ms * self.slo_pct / 100

    def cache_step_rows(self, steps: int) -> int:
        """GPU cache rows of one rank in this many of the budget's steps."""
        return self.cache_rows * steps // self.cache_steps

    def host_step_rows(self, layer: Layer, steps: int) -> int:
        """Second-level rows of one rank in this many of the host budget's steps."""
        return self.host_cache_bytes * steps // (self.cache_steps * self.ranks * layer.row_bytes)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one layer's table lives and its share of the caches, in rows of one rank."""

    layer_id: int
    device: str
    cache_rows: int = 0
    host_cache_rows: int = 0


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer of a prediction. read_ms counts from s; margin_ms is what is left of the window, negative if late."""

    layer_id: int
    pages: float
    read_ms: float
    stall_ms: float
    margin_ms: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a placement costs. slowdown_ms = the layers' stalls + kappa; load: reads per second per device name."""

    layers: tuple[LayerCost, ...]
    slowdown_ms: float
    cost: float
    reads_per_s: Mapping[str, float]


def sharing(problem: Problem, device: Device) -> float:
    """Factor on a read model's per-page terms: how many times its own pages the fit's unit of the device serves."""
    return problem.ranks / device.units / device.read.ranks_per_unit * device.instances


def exposed_stalls(ready_ms: Sequence[float], windows_ms: Sequence[float]) -> list[float]:
    """d_k of the rule, from when each layer's rows are there (s + T_k) and its window: a stall gives later layers time.

    d_k = max(0, ready_k - W_k - (d_1 + ... + d_{k-1}))
    """
    stalls: list[float] = []
    waited = 0.0
    for ready, window in zip(ready_ms, windows_ms, strict=True):
        stalls.append(max(0.0, ready - window - waited))
        waited += stalls[-1]
    return stalls


def read_times(
    problem: Problem, devices: Sequence[Device], pages: Sequence[float], host: Sequence[float]
) -> list[float]:
    """T_k of each layer, in ms from s.

    devices  the device of each layer, in order of use
    pages    what each layer reads from its device, in pages of one rank
    host     what each layer may read from the second level; 0 for a layer that has none
    A layer waits for its own pages and those of earlier layers on its device, and is slowed by later ones. Without
    pages to read there is nothing to wait for.
    """
    totals: dict[str, float] = {}
    for device, count in zip(devices, pages, strict=True):
        totals[device.name] = totals.get(device.name, 0.0) + count
    before: dict[str, float] = dict.fromkeys(totals, 0.0)
    host_before = 0.0
    times: list[float] = []
    for device, count, host_count in zip(devices, pages, host, strict=True):
        before[device.name] += count
        host_before += host_count
        queued = before[device.name]
        scale = sharing(problem, device)
        read = device.read
        tier_us = (
            read.a_us + scale * (read.b_us * queued + read.c_us * (totals[device.name] - queued)) if count else 0.0
        )
        host_us = problem.host_read.a_us + problem.host_read.b_us * host_before if host_count else 0.0
        times.append(max(tier_us, host_us) / 1000)
    return times


def predict(problem: Problem, places: Sequence[Place]) -> Prediction:
    """What the given placement costs, by the rule; the search and the measured figures both compare with this.

    Capacities are not looked at. Raises ConfigError if a layer is missing, placed twice or on an unknown device.
    """
    unique("placed layer", (place.layer_id for place in places))
    by_layer = {place.layer_id: place for place in places}
    by_name = {device.name: device for device in problem.devices}
    if set(by_layer) != {layer.layer_id for layer in problem.layers}:
        raise ConfigError(f"placed layers {sorted(by_layer)}, expected {[x.layer_id for x in problem.layers]}")
    for place in places:
        if place.device not in by_name:
            raise ConfigError(f"layer {place.layer_id}: unknown device {place.device!r}")
    ordered = [by_layer[layer.layer_id] for layer in problem.layers]
    devices = [by_name[place.device] for place in ordered]
    pages, host = [], []
    for layer, place in zip(problem.layers, ordered, strict=True):
        pages.append(layer.misses.pages(place.cache_rows + place.host_cache_rows))
        # The second level answers at most what missed the GPU cache.
        host.append(layer.misses.pages(place.cache_rows) if place.host_cache_rows else 0.0)
    times = read_times(problem, devices, pages, host)
    stalls = exposed_stalls([problem.s_ms + t for t in times], [layer.window_ms for layer in problem.layers])
    costs, waited = [], 0.0
    for layer, count, time, stall in zip(problem.layers, pages, times, stalls, strict=True):
        margin = layer.window_ms + waited - problem.s_ms - time
        costs.append(LayerCost(layer.layer_id, count, time, stall, margin))
        waited += stall
    return Prediction(
        layers=tuple(costs),
        slowdown_ms=waited + problem.kappa_ms,
        cost=sum(device.cost(layer) for layer, device in zip(problem.layers, devices, strict=True)),
        reads_per_s=device_load(problem, devices, pages),
    )


def device_load(problem: Problem, devices: Sequence[Device], pages: Sequence[float]) -> dict[str, float]:
    """Reads per second that all instances together ask of each device, at the step time without a slowdown."""
    load: dict[str, float] = {}
    for device, count in zip(devices, pages, strict=True):
        per_s = count * problem.ranks * device.instances * 1000 / problem.step_ms
        load[device.name] = load.get(device.name, 0.0) + per_s
    return load
