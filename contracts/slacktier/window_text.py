# SPDX-License-Identifier: Apache-2.0
"""The sentences of a decision: each holds the numbers that a person needs to check it."""

from __future__ import annotations

from slacktier.window_model import GIB, Device, Layer, LayerCost, Place, Prediction, Problem, sharing
from slacktier.window_search import EXACT_LAYERS, Solution, Space, split_exact

_LOAD_NEAR = 0.8  # of a device's reads per second, from which on a warning is due


def ms(value: float) -> str:
    """A duration with the digits that matter."""
    return f"{value:.3f} ms" if 0 < abs(value) < 0.1 else f"{value:.2f} ms"


def gib(value: float) -> str:
    return f"{value / GIB:,.1f} GiB" if value >= GIB / 10 else f"{value / (1 << 20):,.1f} MiB"


def count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def layer_sentence(problem: Problem, space: Space, found: Solution, index: int, place: Place, cost: LayerCost) -> str:
    """Where the layer's table lives, when its rows are there, and why no cheaper place would do."""
    layer, device = problem.layers[index], problem.devices[found.devices[index]]
    reads = "reads nothing" if not cost.pages else f"reads {count(cost.pages)} pages in {ms(cost.read_ms)}"
    ids = f" after {ms(problem.s_ms)} for the ids" if problem.s_ms else ""
    text = f"layer {layer.layer_id} on {device.name} ({device.tier}): {reads}{ids}, window {ms(layer.window_ms)}"
    text += f", {ms(cost.margin_ms)} to spare" if cost.stall_ms <= 0 else f", so the step waits {ms(cost.stall_ms)}"
    text += f"; {_cache_clause(layer, place)}"
    reason = _why_not_cheaper(problem, space, found, index)
    return f"{text}; {reason}" if reason else text


def _cache_clause(layer: Layer, place: Place) -> str:
    rows, host = place.cache_rows, place.host_cache_rows
    if not rows and not host:
        return "no cache"
    parts = [f"{count(rows)} cache rows"] if rows else []
    parts += [f"{count(host)} rows in host memory"] if host else []
    before, after = layer.misses.pages(0), layer.misses.pages(rows + host)
    return f"{' and '.join(parts)} cut its pages from {count(before)} to {count(after)}"


def _why_not_cheaper(problem: Problem, space: Space, found: Solution, index: int) -> str:
    """Why the cheapest device for this layer was not taken, or "" if it was."""
    layer, chosen = problem.layers[index], found.devices[index]
    costs = space.cost[index]
    cheaper = [d for d in range(len(costs)) if costs[d] < costs[chosen]]
    if not cheaper:
        return ""
    d = min(cheaper, key=lambda other: (costs[other], other))
    name = problem.devices[d].name
    if d not in space.allowed[index]:
        return f"{name} is cheaper but {_not_allowed(layer, problem.devices[d])}"
    moved = list(found.devices)
    moved[index] = d
    if not space.fits_capacity(moved):
        return f"{name} is cheaper but has no room for it beside the other tables"
    if layer.window_ms <= 0:
        return f"{name} is cheaper but nothing hides its reads: a layer without a window needs local memory"
    late = _lateness_there(space, found, moved)
    if late is None:
        return f"{name} is cheaper but cannot serve that many reads per second"
    slowdown = max(0.0, late) + problem.kappa_ms
    if slowdown <= problem.slo_ms:
        return ""
    split = "even with the best cache split" if problem.cache_rows or problem.host_cache_bytes else "there"
    return (
        f"{name} is cheaper but {split} the step would wait {ms(slowdown)}, "
        f"more than the {ms(problem.slo_ms)} that {problem.slo_pct:g} % allows"
    )


def _not_allowed(layer: Layer, device: Device) -> str:
    if layer.tiers and device.tier not in layer.tiers:
        return f"not among its tiers ({', '.join(sorted(layer.tiers))})"
    return f"holds {gib(device.capacity_bytes or 0)} and the table takes {gib(layer.table_bytes)}"


def _lateness_there(space: Space, found: Solution, moved: list[int]) -> float | None:
    """Lateness with these devices, the cache split anew where that is quick; None where it is not allowed."""
    best = split_exact(space, moved, None) if space.layer_count <= EXACT_LAYERS else None
    gpu, host = (best.gpu, best.host) if best is not None else (found.gpu, found.host)
    late, _ = space.evaluate(moved, gpu, host)
    return late if late < float("inf") else None


def summary(problem: Problem, found: Solution, prediction: Prediction) -> str:
    """One sentence on the whole decision."""
    where: dict[str, list[int]] = {}
    for layer, d in zip(problem.layers, found.devices, strict=True):
        where.setdefault(problem.devices[d].name, []).append(layer.layer_id)
    places = ", ".join(f"{layer_ranges(ids)} on {name}" for name, ids in where.items())
    slowdown = prediction.slowdown_ms
    verdict = "within" if found.key[0] == 0 else "beyond"
    return (
        f"{places}: predicted slowdown {ms(slowdown)}, {100 * slowdown / problem.step_ms:.1f} % of a step of "
        f"{ms(problem.step_ms)}, {verdict} the {problem.slo_pct:g} % allowed"
    )


def layer_ranges(ids: list[int]) -> str:
    """layer 1; layers 1, 14; layers 0-2, 5."""
    runs: list[list[int]] = []
    for layer_id in sorted(ids):
        if runs and layer_id == runs[-1][1] + 1:
            runs[-1][1] = layer_id
        else:
            runs.append([layer_id, layer_id])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
    return f"{'layer' if len(ids) == 1 else 'layers'} {', '.join(texts)}"


def warnings(problem: Problem, found: Solution, places: tuple[Place, ...], prediction: Prediction) -> tuple[str, ...]:
    """What the numbers do not cover, one sentence each."""
    lines: list[str] = []
    for layer, d, place, cost in zip(problem.layers, found.devices, places, prediction.layers, strict=True):
        device = problem.devices[d]
        read, seen = device.read, cost.pages * sharing(problem, device)
        if read.pages_max and cost.pages and not read.pages_min <= seen <= read.pages_max:
            lines.append(
                f"layer {layer.layer_id} asks {device.name} for {count(seen)} pages in a step; its read model was "
                f"measured from {count(read.pages_min)} to {count(read.pages_max)}"
            )
        if 0 < abs(cost.margin_ms) < read.rmse_us / 1000:
            lines.append(
                f"layer {layer.layer_id}'s margin of {ms(cost.margin_ms)} is within the error of {device.name}'s "
                f"read model, {ms(read.rmse_us / 1000)}"
            )
        last = layer.misses.points[-1][0]
        if place.cache_rows + place.host_cache_rows > last > 0:
            lines.append(
                f"layer {layer.layer_id}'s miss curve ends at {count(last)} rows; more rows are taken as no help"
            )
    for device in problem.devices:
        load = prediction.reads_per_s.get(device.name, 0.0)
        if device.reads_per_s is not None and load > _LOAD_NEAR * device.reads_per_s:
            lines.append(
                f"{device.name} is asked for {count(load)} reads/s of the {count(device.reads_per_s)} it can serve"
            )
    return tuple(lines)
