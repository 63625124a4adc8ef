# SPDX-License-Identifier: Apache-2.0
"""What would have to change where a decision does not fit: the smallest single change of each kind, found by trying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slacktier.tiers import Tier
from slacktier.window_model import Device, Problem
from slacktier.window_search import EXACT_LAYERS, Solution, search
from slacktier.window_text import count, gib, layer_ranges, ms

_FACTORS = (2, 4, 8, 16)


def no_place(problem: Problem) -> tuple[str, ...]:
    """Why no placement is allowed at all, each sentence with what is missing."""
    lines = [line for k in range(len(problem.layers)) if (line := _no_device(problem, k))]
    if lines:
        return tuple(lines)
    unlimited = replace(problem, devices=tuple(replace(device, reads_per_s=None) for device in problem.devices))
    if search(unlimited)[0] is not None:
        limits = ", ".join(f"{x.name} {count(x.reads_per_s)}" for x in problem.devices if x.reads_per_s is not None)
        return (f"the reads of a step exceed what the devices can serve per second ({limits}), with any cache split",)
    total = sum(layer.table_bytes for layer in problem.layers)
    room = ", ".join(f"{x.name} {gib(x.capacity_bytes)}" for x in problem.devices if x.capacity_bytes is not None)
    return (f"the tables take {gib(total)} and do not fit side by side ({room})",)


def _no_device(problem: Problem, k: int) -> str:
    """Why layer k alone has no device, or ""."""
    layer = problem.layers[k]
    allowed = [x for x in problem.devices if not layer.tiers or x.tier in layer.tiers]
    if not allowed:
        return f"layer {layer.layer_id}: no device of its tiers ({', '.join(sorted(layer.tiers))})"
    roomy = [x for x in allowed if x.capacity_bytes is None or layer.table_bytes <= x.capacity_bytes]
    if not roomy:
        most = max(allowed, key=lambda x: x.capacity_bytes or 0)
        return (
            f"layer {layer.layer_id}: the table takes {gib(layer.table_bytes)}, "
            f"the largest device {most.name} holds {gib(most.capacity_bytes or 0)}"
        )
    rows = problem.cache_rows + problem.host_step_rows(layer, problem.cache_steps)
    local = any(device.tier is Tier.DRAM for device in roomy)
    if layer.window_ms <= 0 and not local and layer.misses.pages(rows):
        return (
            f"layer {layer.layer_id} has no window: its rows are needed as the step starts, so its table "
            f"({gib(layer.table_bytes)}) needs local memory or a cache that holds all of it"
        )
    return ""


def that_fit(problem: Problem, found: Solution, slowdown_ms: float) -> tuple[str, ...]:
    """Changes of which each alone brings the slowdown within the SLO."""
    lines = [
        f"an SLO of {_up(100 * slowdown_ms / problem.step_ms)} % ({ms(slowdown_ms)}) instead of {problem.slo_pct:g} %"
    ]
    if problem.kappa_ms > problem.slo_ms:
        lines.append(f"a fixed cost per step below the {ms(problem.slo_ms)} allowed; now {ms(problem.kappa_ms)}")
        return tuple(lines)
    if len(problem.layers) <= EXACT_LAYERS:
        lines += [text for text in (_cache(problem), *_devices(problem), _tiers(problem)) if text]
    lines.append(_faster_device(problem, found))
    return tuple(lines)


def _up(value: float) -> float:
    """Rounded up to a tenth, so that the SLO named is met."""
    tenths = int(value * 10)
    return (tenths + (tenths < value * 10)) / 10


def _meets(problem: Problem) -> bool:
    found, _ = search(problem)
    return found is not None and found.key[0] == 0


def _cache(problem: Problem) -> str:
    longest = sum(layer.misses.points[-1][0] for layer in problem.layers)
    sizes = [problem.cache_rows * factor for factor in _FACTORS] if problem.cache_rows else []
    sizes = sizes or [longest // factor for factor in reversed((1, *_FACTORS))]
    for rows in sizes:
        if problem.cache_rows < rows and _meets(replace(problem, cache_rows=rows)):
            return f"a GPU cache of {count(rows)} rows per rank; now {count(problem.cache_rows)}"
    return ""


def _devices(problem: Problem) -> Iterator[str]:
    for device in problem.devices:
        if device.tier is not Tier.DRAM:
            yield _units(problem, device)
            if device.instances > 1 and _meets(_with(problem, replace(device, instances=1))):
                yield f"{device.name} for one instance alone; now {device.instances} share it"
        if device.capacity_bytes is not None:
            freed = _with(problem, replace(device, capacity_bytes=None))
            found, _ = search(freed)
            if found is not None and found.key[0] == 0:
                index = freed.devices.index(replace(device, capacity_bytes=None))
                placed = [x for x, d in zip(problem.layers, found.devices, strict=True) if d == index]
                need = sum(layer.table_bytes for layer in placed)
                ids = layer_ranges([layer.layer_id for layer in placed])
                yield f"{gib(need)} of room on {device.name} for {ids}; now {gib(device.capacity_bytes)}"


def _units(problem: Problem, device: Device) -> str:
    for factor in _FACTORS[:3]:
        more = device.units * factor
        if _meets(_with(problem, replace(device, units=more))):
            return f"{more} units of {device.name} instead of {device.units}, the ranks spread over them"
    return ""


def _tiers(problem: Problem) -> str:
    fixed = [layer.layer_id for layer in problem.layers if layer.tiers]
    free = tuple(replace(layer, tiers=frozenset()) for layer in problem.layers)
    if fixed and _meets(replace(problem, layers=free)):
        return f"{layer_ranges(fixed)} free to use any tier"
    return ""


def _faster_device(problem: Problem, found: Solution) -> str:
    """What a tier must do for the latest layer."""
    from slacktier.window_search import Space

    space = Space(problem)
    pages = [space.pages(k, found.gpu[k], found.host[k]) for k in range(space.layer_count)]
    _, latest = space.latest(found.devices, pages)
    layer = problem.layers[latest]
    within = layer.window_ms + problem.slo_ms - problem.kappa_ms - problem.s_ms
    if within <= 0:
        return f"a window for layer {layer.layer_id} that is longer than {ms(layer.window_ms)}"
    return f"a tier that brings layer {layer.layer_id}'s {count(pages[latest])} pages in within {ms(within)}"


def _with(problem: Problem, device: Device) -> Problem:
    others = tuple(x for x in problem.devices if x.name != device.name)
    return replace(problem, devices=(*others, device))
