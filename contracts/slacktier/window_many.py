# SPDX-License-Identifier: Apache-2.0
"""The search for tables read at many layers (Gemma 4: 42): two devices at a time, then single moves.

Reads on different devices do not slow each other, so with all other layers left where they are, dividing the layers of
two devices between them is a problem of its own. A sweep over those layers in order of use solves it: what counts of a
partial division is what each device has queued and how late it is. Sweeps over all pairs go on until none helps.
The answer counts as proven only where it reaches a bound that ignores contention; tests compare it with HiGHS.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from slacktier.tiers import Tier
from slacktier.window_search import Key, Solution, Space, split_greedy, trimmed

ROUNDS_MAX: Final = 3
BUCKETS: Final = 48  # of pages queued on a sweep's first device; the best partial divisions of each are kept
# Of one device: pages queued, bytes placed, lateness of its latest layer.
_Load = tuple[float, int, float]
_EMPTY: Final[_Load] = (0.0, 0, -math.inf)


# The first layers of a sweep divided between its two devices: (over the SLO, cost, outlook, first, second, taken).
# outlook: lateness if all layers still to come went to the same device, the worse of the two; taken: bit i is set if
# layer i of the sweep is on the second device. Plain tuples, because a sweep makes thousands.
_State = tuple[bool, float, float, _Load, _Load, int]


def search_many(space: Space) -> tuple[Solution | None, bool]:
    """The best placement found, and whether a bound proves it."""
    # Devices are chosen as if every layer had an even share of the caches; the shares are dealt out afterwards.
    gpu, host = -(-space.gpu_steps // space.layer_count), -(-space.host_steps // space.layer_count)
    pages = [space.pages(k, gpu, host) for k in range(space.layer_count)]
    devices = _Sweeps(space, pages).run()
    found = split_greedy(space, devices) if devices else None
    if found is None:
        return None, False
    best = trimmed(space, _improve(space, found))
    return best, best.key[:3] <= _bound(space)[:3]


class _Sweeps:
    """Devices for all layers, given what each reads."""

    def __init__(self, space: Space, pages: Sequence[float]) -> None:
        self.space, self.pages = space, pages
        problem = space.problem
        self.limit = problem.slo_ms - problem.kappa_ms
        self.room = [math.inf if x.capacity_bytes is None else x.capacity_bytes for x in problem.devices]
        self.allowed = [frozenset(d for d in space.allowed[k] if self._usable(k, d)) for k in range(space.layer_count)]

    def _usable(self, k: int, d: int) -> bool:
        """Without a window nothing hides a read: only local memory will do."""
        local = self.space.problem.devices[d].tier is Tier.DRAM
        return local or self.space.window[k] > 0 or not self.pages[k]

    def run(self) -> list[int]:
        """The devices found; empty if the layers have no room side by side."""
        devices = self._start()
        if not devices:
            return []
        order = sorted(range(len(self.room)), key=lambda d: (self.space.problem.devices[d].cost_per_gib, d))
        swept: dict[tuple[int, int], list[int]] = {}
        for _ in range(ROUNDS_MAX):
            for pair in itertools.combinations(order, 2):
                # A pair whose layers are those that its last sweep left has nothing to gain.
                if swept.get(pair) != _held(devices, pair):
                    devices = self._sweep(devices, pair)
                    swept[pair] = _held(devices, pair)
        return devices

    def _start(self) -> list[int]:
        """Each layer where it is served the earliest and there is room; large tables first where that fails."""
        sizes = self.space.bytes
        for order in (range(len(sizes)), sorted(range(len(sizes)), key=lambda k: (-sizes[k], k))):
            room, devices = list(self.room), [-1] * len(sizes)
            for k in order:
                fitting = [d for d in self.allowed[k] if sizes[k] <= room[d]]
                if not fitting:
                    break
                devices[k] = min(fitting, key=lambda d: (self.space.base[d] + self.space.b[d] * self.pages[k], d))
                room[devices[k]] -= sizes[k]
            else:
                return devices
        return []

    def _sweep(self, devices: list[int], pair: tuple[int, int]) -> list[int]:
        """The same devices with the layers of these two divided anew, if that is better."""
        layers = [k for k, d in enumerate(devices) if d in pair]
        total = rest = sum(self.pages[k] for k in layers)
        scale = (BUCKETS - 1) / total if total else 0.0
        states: list[_State] = [(False, 0.0, -math.inf, _EMPTY, _EMPTY, 0)]
        for i, k in enumerate(layers):
            rest -= self.pages[k]
            grown: dict[int, list[_State]] = {}
            for after in self._grow(states, k, 1 << i, pair, rest):
                grown.setdefault(round(after[3][0] * scale), []).append(after)
            states = [state for group in grown.values() for state in _best_of(group, max(0.0, self.limit))]
        return self._better(devices, layers, pair, states)

    def _grow(self, states: list[_State], k: int, bit: int, pair: tuple[int, int], rest: float) -> list[_State]:
        """The states with layer k on either of the two, where it may be, has room and can be served."""
        space, limit, pages, size = self.space, self.limit, self.pages[k], self.space.bytes[k]
        ahead = [space.c[d] * rest for d in pair]
        grown: list[_State] = []
        for side, d in enumerate(pair):
            if d not in self.allowed[k]:
                continue
            room, pages_max, cost_here = self.room[d], space.pages_max[d], space.cost[k][d]
            per_page, more = (space.b[d], space.c[d] * pages) if pages else (0.0, 0.0)
            base = (space.base[d] if pages else space.problem.s_ms) - space.window[k]
            for over, cost, _, first, second, taken in states:
                queued, used, worst = second if side else first
                queued += pages
                used += size
                if used > room or queued > pages_max:
                    continue
                worst = max(worst + more, base + per_page * queued)
                over = over or worst > limit > 0 or worst > 0 >= limit
                load = (queued, used, worst)
                one, two = (first, load) if side else (load, second)
                outlook = max(one[2] + ahead[0], two[2] + ahead[1])
                grown.append((over, cost + cost_here, outlook, one, two, taken | bit if side else taken))
        return grown

    def _better(self, devices: list[int], layers: list[int], pair: tuple[int, int], states: list[_State]) -> list[int]:
        """The devices with the best of the divisions, or unchanged."""
        others = [k for k, d in enumerate(devices) if d not in pair]
        late = self.space.latest([devices[k] for k in others], [self.pages[k] for k in others], others)[0]
        cost = sum(self.space.cost[k][devices[k]] for k in others)
        best = None
        best_key = self.space.key(self.space.latest(devices, self.pages)[0], self.space.cost_of(devices), 0, 0)
        for state in states:
            key = self.space.key(max(late, state[3][2], state[4][2]), cost + state[1], 0, 0)
            if key < best_key:
                best, best_key = state, key
        if best is None:
            return devices
        divided = list(devices)
        for i, k in enumerate(layers):
            divided[k] = pair[best[5] >> i & 1]
        return divided


def _held(devices: list[int], pair: tuple[int, int]) -> list[int]:
    """Which of the two each layer is on; -1 for neither."""
    return [d if d in pair else -1 for d in devices]


def _best_of(group: list[_State], limit: float) -> list[_State]:
    """Of states with about the same queue: the cheapest within the SLO so far, the cheapest that stays within it even
    if all that is to come joins the same queue, and the one with the best outlook."""
    if len(group) == 1:
        return group
    kept = [min(group), min(group, key=lambda state: (state[2] > limit, state[1], state[2]))]
    kept.append(min(group, key=itemgetter(2)))
    return list(dict.fromkeys(kept))


def _improve(space: Space, best: Solution) -> Solution:
    """Move single layers, then exchange pairs, while that makes the key smaller; then deal the cache out again."""
    for _ in range(ROUNDS_MAX):
        moved = _exchanges(space, _moves(space, best))
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


def _exchanges(space: Space, best: Solution) -> Solution:
    """Move a layer to a cheaper device where that is too late by itself, and another, cheaper one off it to make up."""
    pages = [space.pages(k, best.gpu[k], best.host[k]) for k in range(space.layer_count)]
    allowed_late = space.problem.slo_ms - space.problem.kappa_ms
    for k in range(space.layer_count):
        home = best.devices[k]
        for d in space.allowed[k]:
            saving = space.cost[k][home] - space.cost[k][d]
            if saving <= 0 or best.key[0]:
                continue
            devices = list(best.devices)
            devices[k] = d
            late, latest = space.latest(devices, pages)
            for j in _relief(space, devices, pages, latest, late - allowed_late):
                if j == k or home not in space.allowed[j] or space.cost[j][home] - space.cost[j][d] >= saving:
                    continue
                devices[j] = home
                late, key = space.evaluate(devices, best.gpu, best.host)
                if late != math.inf and key < best.key and space.fits_capacity(devices):
                    best = Solution(key, tuple(devices), best.gpu, best.host)
                    break
                devices[j] = d
    return best


def _relief(space: Space, devices: list[int], pages: Sequence[float], latest: int, excess_ms: float) -> list[int]:
    """Layers beside the latest one whose leaving its device makes up for this much lateness, least late help first."""
    d = devices[latest]
    gains = ((pages[j] * (space.b[d] if j <= latest else space.c[d]), j) for j, at in enumerate(devices) if at == d)
    return [j for gain, j in sorted(gains) if gain >= excess_ms or j == latest]


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
