# SPDX-License-Identifier: Apache-2.0
"""The search for tables read at many layers (Gemma 4: 42): a beam over layers in order of use, then local moves.

A partial placement is known by what each device has queued, its lateness so far and what was spent, so one step of the
beam is a few additions. The answer counts as proven only where it reaches a bound that ignores contention.
"""

from __future__ import annotations

import math
from operator import itemgetter
from typing import Final

from slacktier.tiers import Tier
from slacktier.window_search import Key, Solution, Space, split_greedy, trimmed

BEAM_NODES: Final = 96  # partial placements kept, times devices
BEAM_MIN: Final = 8
ROUNDS_MAX: Final = 2

# Per device: pages queued, bytes placed, lateness of its latest layer.
_Load = tuple[float, int, float]
# (over the SLO, then cost and lateness or the other way round, device time queued), loads, devices. Smaller is better.
_Rank = tuple[bool, float, float, float]
_State = tuple[_Rank, float, float, tuple[_Load, ...], tuple[int, ...]]  # rank, lateness, cost, loads, devices


def search_many(space: Space) -> tuple[Solution | None, bool]:
    """The best placement found, and whether a bound proves it."""
    best: Solution | None = None
    for gpu, host in _cache_guesses(space):
        devices = _beam(space, gpu, host)
        found = split_greedy(space, devices) if devices else None
        if found is not None and (best is None or found.key < best.key):
            best = found
    if best is None:
        return None, False
    best = trimmed(space, _improve(space, best))
    return best, best.key[:3] <= _bound(space)[:3]


def _cache_guesses(space: Space) -> list[tuple[int, int]]:
    """Steps that every layer is taken to have while devices are chosen: none, then an even share."""
    n = space.layer_count
    return sorted({(0, 0), (-(-space.gpu_steps // n), -(-space.host_steps // n))})


def _beam(space: Space, gpu: int, host: int) -> tuple[int, ...]:
    """The best devices found with these cache steps for every layer; empty if no assignment is allowed."""
    beam = _Beam(space)
    states = [beam.start()]
    width = max(BEAM_MIN, BEAM_NODES // len(space.base))
    for k in range(space.layer_count):
        pages = space.pages(k, gpu, host)
        grown = [after for state in states for d in space.allowed[k] if (after := beam.place(state, k, d, pages))]
        # The order of equal ranks is that of the devices' names, so sorting by rank alone is repeatable.
        states = sorted(grown, key=itemgetter(0))[:width]
    return states[0][4] if states else ()


class _Beam:
    """Grows partial placements; holds what a step of it needs at hand."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self.limit = space.problem.slo_ms - space.problem.kappa_ms
        self.floor = -space.problem.margin_ms
        self.room = [math.inf if x.capacity_bytes is None else x.capacity_bytes for x in space.problem.devices]
        self.local = [device.tier is Tier.DRAM for device in space.problem.devices]

    def start(self) -> _State:
        empty: tuple[_Load, ...] = ((0.0, 0, -math.inf),) * len(self.room)
        return (False, 0.0, 0.0, 0.0), -math.inf, 0.0, empty, ()

    def place(self, state: _State, k: int, d: int, pages: float) -> _State | None:
        """The state with layer k on device d, or None if that is not allowed."""
        rank, late, cost, loads, devices = state
        space = self.space
        queued, used, worst = loads[d]
        queued, used = queued + pages, used + space.bytes[k]
        window = space.window[k]
        if used > self.room[d] or queued > space.pages_max[d] or (pages and window <= 0 and not self.local[d]):
            return None
        here = space.base[d] + space.b[d] * queued if pages else space.problem.s_ms
        worst = max(worst + space.c[d] * pages, here - window)
        late, cost = max(late, worst), cost + space.cost[k][d]
        # Of two equal states the one with less device time queued leaves more of it to later layers.
        busy = rank[3] + space.b[d] * pages
        at = max(late, self.floor)
        after = (True, at, cost, busy) if max(late, 0.0) > self.limit else (False, cost, at, busy)
        return after, late, cost, (*loads[:d], (queued, used, worst), *loads[d + 1 :]), (*devices, d)


def _improve(space: Space, best: Solution) -> Solution:
    """Move single layers while that makes the key smaller, dealing the cache out again after each round."""
    for _ in range(ROUNDS_MAX):
        moved = _moves(space, best)
        if moved.devices == best.devices:
            break
        again = split_greedy(space, moved.devices)
        best = again if again is not None and again.key < moved.key else moved
    return best


def _moves(space: Space, best: Solution) -> Solution:
    devices = list(best.devices)
    for k in reversed(range(space.layer_count)):
        for d in space.allowed[k]:
            before = devices[k]
            if d == before:
                continue
            devices[k] = d
            late, key = space.evaluate(devices, best.gpu, best.host)
            if late != math.inf and key < best.key and space.fits_capacity(devices):
                best = Solution(key, tuple(devices), best.gpu, best.host)
            else:
                devices[k] = before
    return best


def _bound(space: Space) -> Key:
    """A key that no placement beats: each layer alone, with the whole cache, on the best device for it."""
    late, cost = -math.inf, 0.0
    limit = space.problem.slo_ms - space.problem.kappa_ms
    for k in range(space.layer_count):
        alone = {d: _alone(space, k, d) for d in space.allowed[k]}
        late = max(late, min(alone.values()))
        cost += min((space.cost[k][d] for d, at in alone.items() if at <= limit), default=0.0)
    return space.key(late, cost, 0, 0)


def _alone(space: Space, k: int, d: int) -> float:
    pages = space.pages(k, space.gpu_steps, space.host_steps)
    if not pages:
        return space.problem.s_ms - space.window[k]
    if space.window[k] <= 0 and space.problem.devices[d].tier is not Tier.DRAM:
        return math.inf
    return space.base[d] + space.b[d] * pages - space.window[k]
