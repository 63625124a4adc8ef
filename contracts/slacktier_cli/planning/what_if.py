# SPDX-License-Identifier: Apache-2.0
"""Other circumstances for the same plan: more sessions or instances, more disks, larger tables, narrower rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from slacktier.errors import ConfigError
from slacktier.plan_file import PlanFile
from slacktier.tiers import Tier
from slacktier.window import Decision, Problem, decide

_SCALE_BYTES = 4  # rows keep their scales when their values get half as wide


@dataclass(frozen=True, slots=True)
class Case:
    """One what-if: a name such as `disks=2`, the changed problem, its decision and what was assumed."""

    name: str
    problem: Problem
    decision: Decision
    notes: tuple[str, ...]


def standard_cases(plan: PlanFile) -> list[str]:
    """What `--what-if all` asks: twice the sessions and instances, one disk more, 2x and 5x tables, 4-bit rows."""
    cases = [f"sessions={2 * plan.sessions}", "instances=2"]
    disks = [device.units for device in plan.devices if device.tier is Tier.NVME]
    cases += [f"disks={max(disks) + 1}"] if disks else []
    return [*cases, "table=2", "table=5", "row-bits=4"]


def run_case(plan: PlanFile, text: str) -> Case:
    """The decision under one or more changes, as in `sessions=256,disks=4`."""
    changes = [_parse(part) for part in text.split(",")]
    sessions = next((value for name, value in changes if name == "sessions"), None)
    problem, notes = plan.problem(sessions)
    lines = list(notes)
    for name, value in changes:
        if name != "sessions":
            change, note = _CHANGES[name]
            problem = change(problem, value)
            lines.append(note)
    return Case(text, problem, decide(problem), tuple(lines))


def _parse(text: str) -> tuple[str, int]:
    name, _, value = text.strip().partition("=")
    known = ("sessions", *_CHANGES)
    if name not in known:
        raise ConfigError(f"what-if {name!r}: expected one of {', '.join(known)}, each with =NUMBER, or all")
    if not value.isascii() or not value.isdigit() or not int(value):
        raise ConfigError(f"what-if {name}={value}: expected a whole number above 0")
    if name == "row-bits" and int(value) != 4:
        raise ConfigError(f"what-if row-bits={value}: only 4 is known, half of today's 8-bit values")
    return name, int(value)


def _instances(problem: Problem, count: int) -> Problem:
    """All devices but local memory serve this many instances."""
    devices = (x if x.tier is Tier.DRAM else replace(x, instances=count) for x in problem.devices)
    return replace(problem, devices=tuple(devices))


def _disks(problem: Problem, count: int) -> Problem:
    """Every group of disks has this many, with the capacity and reads per second that go with it."""
    if not any(device.tier is Tier.NVME for device in problem.devices):
        raise ConfigError("what-if disks: the plan has no nvme device")
    devices = []
    for device in problem.devices:
        if device.tier is Tier.NVME:
            room = None if device.capacity_bytes is None else device.capacity_bytes * count // device.units
            reads = None if device.reads_per_s is None else device.reads_per_s * count / device.units
            device = replace(device, units=count, capacity_bytes=room, reads_per_s=reads)
        devices.append(device)
    return replace(problem, devices=tuple(devices))


def _table(problem: Problem, factor: int) -> Problem:
    layers = (replace(layer, row_count=layer.row_count * factor) for layer in problem.layers)
    return replace(problem, layers=tuple(layers))


def _row_bits(problem: Problem, _bits: int) -> Problem:
    """Half as wide values; the caches keep their bytes and so hold more rows."""
    layers = tuple(replace(x, row_bytes=-(-x.row_bytes // 2 // _SCALE_BYTES) * _SCALE_BYTES) for x in problem.layers)
    before = sum(layer.row_bytes for layer in problem.layers)
    after = sum(layer.row_bytes for layer in layers)
    return replace(problem, layers=layers, cache_rows=problem.cache_rows * before // after)


_CHANGES: dict[str, tuple[Callable[[Problem, int], Problem], str]] = {
    "instances": (_instances, "every instance reads the same number of pages at the same time"),
    "disks": (_disks, "ranks spread evenly over the disks"),
    "table": (_table, "lookups and misses per step stay as they are: misses are mostly rows seen for the first time"),
    "row-bits": (
        _row_bits,
        "rows take half the bytes, the GPU cache as many bytes as before; each row is still one page",
    ),
}
