# SPDX-License-Identifier: Apache-2.0
"""The window rule: a table can live on any tier whose reads end within the window of the layer that needs them.

`decide()` is the one function that answers where each table lives; the operator, tierd, the emulated engine and
`slacktier plan` all ask it. It is pure: no clock, no I/O, the same answer for the same problem in any order. The nouns
and the arithmetic are in window_model, the search in window_search, the sentences in window_text.

The simple case, DeepSeek-V4.1 with measured windows, read models and miss points:

>>> problem = Problem(
...     layers=(
...         Layer(1, window_ms=0.27, row_count=384_006_168,
...               misses=MissCurve.from_hit_rates(600, {250_000: 0.81, 500_000: 0.85, 1_000_000: 0.87})),
...         Layer(14, window_ms=9.35, row_count=384_016_682,
...               misses=MissCurve.from_hit_rates(600, {250_000: 0.81, 500_000: 0.85, 1_000_000: 0.87})),
...     ),
...     devices=(
...         Device("host", Tier.DRAM, ReadModel(a_us=10, b_us=0.03), cost_per_gib=4.0),
...         Device("nvme0", Tier.NVME, ReadModel(a_us=300, b_us=3.05, c_us=0.37, ranks_per_unit=4), cost_per_gib=0.1),
...     ),
...     step_ms=29.4, ranks=4, slo_pct=1.0, cache_rows=1_000_000,
... )
>>> decision = decide(problem)
>>> [(layer.layer_id, layer.device, layer.cache_rows) for layer in decision.layers]
[(1, 'host', 0), (14, 'nvme0', 0)]
>>> decision.slowdown_ms
0.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from slacktier import window_changes, window_text
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier.window_model import (
    GIB,
    Device,
    Layer,
    LayerCost,
    MissCurve,
    Place,
    Prediction,
    Problem,
    ReadModel,
    exposed_stalls,
    predict,
)
from slacktier.window_search import EXACT_LAYERS, Solution, Space, search, split

__all__ = [
    "EXACT_LAYERS",
    "GIB",
    "Decision",
    "Device",
    "Layer",
    "LayerCost",
    "LayerDecision",
    "MissCurve",
    "Place",
    "Prediction",
    "Problem",
    "ReadModel",
    "Tier",
    "best_split",
    "decide",
    "exposed_stalls",
    "predict",
]


@dataclass(frozen=True, slots=True)
class LayerDecision:
    """Where one layer's table lives and what that costs.

    cache_rows, host_cache_rows  rows of one rank on the GPU and in host memory
    pages        4 KiB pages of one rank read in a step
    read_ms      from resolved row ids until the rows are there; stall_ms: how long the step waits for them
    margin_ms    window left over; negative by the stall where the rows are late
    sentence     the decision with its numbers
    """

    layer_id: int
    device: str
    tier: Tier
    cache_rows: int
    host_cache_rows: int
    pages: float
    read_ms: float
    window_ms: float
    stall_ms: float
    margin_ms: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Decision:
    """decide()'s answer. Without layers the tables fit nowhere and the slowdown is infinite.

    fits         every table has a place and the slowdown is within the SLO
    proven       no better placement exists on the cache's grid; with many layers only where a bound shows it
    cost         tables' GiB times their devices' cost
    reads_per_s  of all instances, per device used
    summary      one sentence on the whole; warnings: what the numbers do not cover; changes: what would make it fit
    """

    fits: bool
    proven: bool
    layers: tuple[LayerDecision, ...]
    slowdown_ms: float
    slowdown_pct: float
    slo_margin_ms: float
    cost: float
    cache_rows_spare: int
    host_cache_bytes_spare: int
    reads_per_s: Mapping[str, float]
    summary: str
    warnings: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def decide(problem: Problem) -> Decision:
    """The cheapest placement within the SLO, of these the fastest, of these the one with the fewest cache rows.

    Where nothing meets the SLO: the fastest placement, with `fits` false and `changes` saying what would meet it.
    """
    found, proven = search(problem)
    if found is None:
        return _nowhere(problem, proven)
    places = _places(problem, found)
    prediction = predict(problem, places)
    slowdown = prediction.slowdown_ms
    spare_steps = problem.cache_steps - sum(found.host)
    return Decision(
        fits=found.key[0] == 0,
        proven=proven,
        layers=_layers(problem, found, places, prediction),
        slowdown_ms=slowdown,
        slowdown_pct=100 * slowdown / problem.step_ms,
        slo_margin_ms=problem.slo_ms - slowdown,
        cost=prediction.cost,
        cache_rows_spare=problem.cache_rows - sum(place.cache_rows for place in places),
        host_cache_bytes_spare=problem.host_cache_bytes * spare_steps // problem.cache_steps,
        reads_per_s=prediction.reads_per_s,
        summary=window_text.summary(problem, found, prediction),
        warnings=window_text.warnings(problem, found, places, prediction),
        changes=() if found.key[0] == 0 else window_changes.that_fit(problem, found, slowdown),
    )


def best_split(problem: Problem, devices: Mapping[int, str]) -> tuple[Place, ...]:
    """The cache split with the smallest slowdown for tables whose devices (name per layer id) are already chosen.

    Capacities and the SLO are not looked at. Raises ConfigError for a layer without a known device, or if the placement
    is not allowed at all: too many reads per second, or a layer without a window on a slow tier.
    """
    names = [device.name for device in problem.devices]
    for layer in problem.layers:
        if devices.get(layer.layer_id) not in names:
            raise ConfigError(f"layer {layer.layer_id}: unknown device {devices.get(layer.layer_id)!r}")
    found = split(Space(problem), [names.index(devices[layer.layer_id]) for layer in problem.layers])
    if found is None:
        raise ConfigError("no cache split is allowed with these devices")
    return _places(problem, found)


def _nowhere(problem: Problem, proven: bool) -> Decision:
    """No placement is allowed at all: nothing is predicted, `changes` says what is missing."""
    return Decision(
        fits=False,
        proven=proven,
        layers=(),
        slowdown_ms=math.inf,
        slowdown_pct=math.inf,
        slo_margin_ms=-math.inf,
        cost=0.0,
        cache_rows_spare=problem.cache_rows,
        host_cache_bytes_spare=problem.host_cache_bytes,
        reads_per_s={},
        summary=("the tables have no place" if proven else "no place was found for the tables") + " on these devices",
        changes=window_changes.no_place(problem),
    )


def _places(problem: Problem, found: Solution) -> tuple[Place, ...]:
    """The search's indices as places."""
    return tuple(
        Place(
            layer.layer_id,
            problem.devices[d].name,
            problem.cache_step_rows(gpu),
            problem.host_step_rows(layer, host),
        )
        for layer, d, gpu, host in zip(problem.layers, found.devices, found.gpu, found.host, strict=True)
    )


def _layers(
    problem: Problem, found: Solution, places: tuple[Place, ...], prediction: Prediction
) -> tuple[LayerDecision, ...]:
    space = Space(problem)
    return tuple(
        LayerDecision(
            layer_id=place.layer_id,
            device=place.device,
            tier=problem.devices[found.devices[k]].tier,
            cache_rows=place.cache_rows,
            host_cache_rows=place.host_cache_rows,
            pages=cost.pages,
            read_ms=cost.read_ms,
            window_ms=problem.layers[k].window_ms,
            stall_ms=cost.stall_ms,
            margin_ms=cost.margin_ms,
            sentence=window_text.layer_sentence(problem, space, found, k, place, cost),
        )
        for k, (place, cost) in enumerate(zip(places, prediction.layers, strict=True))
    )
