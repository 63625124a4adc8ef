# SPDX-License-Identifier: Apache-2.0
"""The search behind decide(): the best device per layer and the best cache split, as indices and cache steps.

All stalls of a step add up to the lateness of its latest layer, max_k(s + T_k - W_k), because a stall gives later
layers time. So a placement is judged by that one number, which more pages never make smaller.
Up to EXACT_LAYERS layers the answer is the best of all; with more see window_many.
No clock is read: work is bounded by counting, so the same problem always gives the same answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slacktier.tiers import Tier
from slacktier.window_model import Problem, sharing

EXACT_LAYERS: Final = 4
NODES_MAX: Final = 400_000
_ROUND: Final = 6  # decimals of a millisecond that still count: 1 ns
_EPSILON_MS: Final = 1e-9

# Smaller is better. Within the SLO: (0, cost, lateness, GPU steps, host steps); beyond: (1, lateness, cost, ...).
Key = tuple[int, float, float, int, int]


@dataclass(frozen=True, slots=True)
class Solution:
    """A placement as indices into the problem's devices, with each layer's steps of the two cache budgets."""

    key: Key
    devices: tuple[int, ...]
    gpu: tuple[int, ...]
    host: tuple[int, ...]


class Space:
    """One problem, ready for quick evaluation of many placements."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layer_count = len(problem.layers)
        self.gpu_steps = problem.cache_steps if problem.cache_rows else 0
        self.host_steps = problem.cache_steps if problem.host_cache_bytes else 0
        self.nodes = 0
        self.complete = True
        # lateness of layer k on device d = base[d] + per-page terms - window[k]
        self.base = [problem.s_ms + device.read.a_us / 1000 for device in problem.devices]
        self.b = [sharing(problem, device) * device.read.b_us / 1000 for device in problem.devices]
        self.c = [sharing(problem, device) * device.read.c_us / 1000 for device in problem.devices]
        self.window = [layer.window_ms for layer in problem.layers]
        self.bytes = [layer.table_bytes for layer in problem.layers]
        self.cost = [[device.cost(layer) for device in problem.devices] for layer in problem.layers]
        self.pages_max = [self._pages_max(d) for d in range(len(problem.devices))]
        self.allowed = [self._allowed(k) for k in range(self.layer_count)]
        self._pages: dict[tuple[int, int, int], float] = {}

    def _pages_max(self, d: int) -> float:
        """Pages of one rank and step that device d may be asked for."""
        device, problem = self.problem.devices[d], self.problem
        if device.reads_per_s is None:
            return math.inf
        return device.reads_per_s * problem.step_ms / 1000 / (problem.ranks * device.instances)

    def _allowed(self, k: int) -> tuple[int, ...]:
        layer = self.problem.layers[k]
        return tuple(
            d
            for d, device in enumerate(self.problem.devices)
            if (not layer.tiers or device.tier in layer.tiers)
            and (device.capacity_bytes is None or layer.table_bytes <= device.capacity_bytes)
        )

    def pages(self, k: int, gpu: int, host: int) -> float:
        """Pages that layer k reads from its device with these steps of the caches."""
        at = (k, gpu, host)
        found = self._pages.get(at)
        if found is None:
            layer, problem = self.problem.layers[k], self.problem
            rows = problem.cache_step_rows(gpu) if gpu else 0
            rows += problem.host_step_rows(layer, host) if host else 0
            found = self._pages[at] = layer.misses.pages(rows)
        return found

    def fits_capacity(self, devices: Sequence[int]) -> bool:
        used: dict[int, int] = {}
        for k, d in enumerate(devices):
            used[d] = used.get(d, 0) + self.bytes[k]
        limits = self.problem.devices
        return all((cap := limits[d].capacity_bytes) is None or total <= cap for d, total in used.items())

    def latest(
        self, devices: Sequence[int], pages: Sequence[float], layers: Sequence[int] | None = None
    ) -> tuple[float, int]:
        """max_k(s + T_k - W_k) in ms over the devices' reads, infinite where not allowed at any cost; and that k.

        layers  the layers that devices and pages are of, in order of use; all of them if None
        """
        totals: dict[int, float] = {}
        for d, count in zip(devices, pages, strict=True):
            totals[d] = totals.get(d, 0.0) + count
        overload = any(total > self.pages_max[d] for d, total in totals.items())
        queued = dict.fromkeys(totals, 0.0)
        worst, latest = -math.inf, 0
        windows = self.window if layers is None else [self.window[k] for k in layers]
        for k, (d, count, window) in enumerate(zip(devices, pages, windows, strict=True)):
            queued[d] = at = queued[d] + count
            late = self.problem.s_ms - window
            if count:
                late = self.base[d] + self.b[d] * at + self.c[d] * (totals[d] - at) - window
                # Without a window nothing hides a read: only local memory will do, whatever the SLO allows.
                if window <= 0 and self.problem.devices[d].tier is not Tier.DRAM:
                    late = math.inf
            if late > worst:
                worst, latest = late, k
        return (math.inf if overload else worst), latest

    def lateness(self, devices: Sequence[int], pages: Sequence[float], host: Sequence[float]) -> float:
        """The latest layer's lateness, also counting what the second level may have to answer (0: nothing)."""
        worst, _ = self.latest(devices, pages)
        queued, read = 0.0, self.problem.host_read
        for count, window in zip(host, self.window, strict=True):
            if count:
                queued += count
                worst = max(worst, self.problem.s_ms + (read.a_us + read.b_us * queued) / 1000 - window)
        return worst

    def key(self, late_ms: float, cost: float, gpu: int, host: int) -> Key:
        """What placements are compared by; also a lower bound when made from lower bounds."""
        late = round(max(late_ms, -self.problem.margin_ms), _ROUND)
        cost = round(cost, _ROUND)
        if max(0.0, late_ms) + self.problem.kappa_ms <= self.problem.slo_ms + _EPSILON_MS:
            return (0, cost, late, gpu, host)
        return (1, late, cost, gpu, host)

    def cost_of(self, devices: Sequence[int]) -> float:
        return sum(self.cost[k][d] for k, d in enumerate(devices))

    def evaluate(self, devices: Sequence[int], gpu: Sequence[int], host: Sequence[int]) -> tuple[float, Key]:
        """Lateness and key of a whole placement."""
        pages = [self.pages(k, gpu[k], host[k]) for k in range(self.layer_count)]
        missed = [self.pages(k, gpu[k], 0) if host[k] else 0.0 for k in range(self.layer_count)]
        late = self.lateness(devices, pages, missed)
        return late, self.key(late, self.cost_of(devices), sum(gpu), sum(host))

    def bound(self, devices: Sequence[int]) -> Key | None:
        """A key that no cache split on these devices beats; None if none of them is allowed."""
        pages = [self.pages(k, self.gpu_steps, self.host_steps) for k in range(self.layer_count)]
        late = self.lateness(devices, pages, [0.0] * self.layer_count)
        return None if late == math.inf else self.key(late, self.cost_of(devices), 0, 0)


def search(problem: Problem) -> tuple[Solution | None, bool]:
    """The best placement and whether it is proven to be; None where no placement is allowed at all."""
    space = Space(problem)
    if not all(space.allowed):
        return None, True
    if space.layer_count <= EXACT_LAYERS:
        return _exact(space), space.complete
    from slacktier.window_many import search_many

    return search_many(space)


def _exact(space: Space) -> Solution | None:
    """Best first over the devices' combinations: stop where the next one's bound cannot beat what was found."""
    bounds = []
    for devices in itertools.product(*space.allowed):
        if space.fits_capacity(devices) and (key := space.bound(devices)) is not None:
            bounds.append((key, devices))
    best: Solution | None = None
    for key, devices in sorted(bounds):
        if best is not None and key >= best.key:
            break
        found = split_exact(space, devices, best)
        best = found or best
    return best


def split(space: Space, devices: Sequence[int]) -> Solution | None:
    """The best cache split on these devices: exact up to EXACT_LAYERS layers, greedy beyond; None if not allowed."""
    if space.layer_count <= EXACT_LAYERS:
        return split_exact(space, devices, None)
    found = split_greedy(space, devices)
    return None if found is None else trimmed(space, found)


def split_exact(space: Space, devices: Sequence[int], best: Solution | None) -> Solution | None:
    """The best cache split on these devices if it beats `best`: depth first, starting from the greedy split."""
    greedy = split_greedy(space, devices)
    if greedy is not None:
        greedy = trimmed(space, greedy)
    if greedy is not None and (best is None or greedy.key < best.key):
        return _Split(space, devices, greedy).run() or greedy
    return _Split(space, devices, best).run()


def split_greedy(space: Space, devices: Sequence[int]) -> Solution | None:
    """A good split in little time: give the latest layer relief, step by step, where a step saves it most."""
    gpu, host = [0] * space.layer_count, [0] * space.layer_count
    _spend(space, devices, gpu, host, of_host=False)
    _spend(space, devices, gpu, host, of_host=True)
    late, key = space.evaluate(devices, gpu, host)
    return None if late == math.inf else Solution(key, tuple(devices), tuple(gpu), tuple(host))


def trimmed(space: Space, found: Solution) -> Solution:
    """The same placement without the cache steps that its cost and lateness do not need."""
    gpu, host = list(found.gpu), list(found.host)
    for steps in (host, gpu):
        _give_back(space, found.devices, gpu, host, steps, found.key[:3])
    _, key = space.evaluate(found.devices, gpu, host)
    return Solution(key, found.devices, tuple(gpu), tuple(host))


def _spend(space: Space, devices: Sequence[int], gpu: list[int], host: list[int], *, of_host: bool) -> None:
    """Deal one budget out, in place, until nothing helps the latest layer or every layer is early enough."""
    left = space.host_steps if of_host else space.gpu_steps
    steps = host if of_host else gpu

    def best_offer(k: int) -> tuple[float, int]:
        """Pages saved per step of cache, at the stride that saves most, and that stride."""
        now = space.pages(k, gpu[k], host[k])
        at = [(gpu[k], host[k] + n) if of_host else (gpu[k] + n, host[k]) for n in _strides(left)]
        return max(((now - space.pages(k, *more)) / n, n) for more, n in zip(at, _strides(left), strict=True))

    pages = [space.pages(k, gpu[k], host[k]) for k in range(space.layer_count)]
    offers = [best_offer(k) for k in range(space.layer_count)] if left else []
    while left:
        late, latest = space.latest(devices, pages)
        if late <= -space.problem.margin_ms:
            return
        d, best, taker = devices[latest], 0.0, -1
        for k, at in enumerate(devices):
            if at == d and offers[k][1] > left:
                offers[k] = best_offer(k)
            saved = (space.b[d] if k <= latest else space.c[d]) * offers[k][0] if at == d else 0.0
            if saved > best:
                best, taker = saved, k
        if taker < 0:
            return
        count = offers[taker][1]
        steps[taker] += count
        left -= count
        pages[taker] = space.pages(taker, gpu[taker], host[taker])
        if left:
            offers[taker] = best_offer(taker)


def _strides(left: int) -> Iterator[int]:
    """1, 2, 4, ... and all that is left: a curve may fall only after a flat stretch."""
    stride = 1
    while stride < left:
        yield stride
        stride *= 2
    if left:
        yield left


def _give_back(
    space: Space,
    devices: Sequence[int],
    gpu: list[int],
    host: list[int],
    steps: list[int],
    wanted: tuple[int, float, float],
) -> None:
    """Take back, in place, every step that the key does not need."""
    for k, most in enumerate(steps):
        if not most:
            continue

        def good(count: int, k: int = k) -> bool:
            steps[k] = count
            late, key = space.evaluate(devices, gpu, host)
            return late != math.inf and key[:3] <= wanted

        steps[k] = _least(0, most, good)


class _Split:
    """Depth-first search over cache steps, one layer a level; a branch dies when its bound cannot beat the best."""

    def __init__(self, space: Space, devices: Sequence[int], best: Solution | None) -> None:
        self.space, self.devices, self.best = space, tuple(devices), best
        self.cost = space.cost_of(devices)
        self.found: Solution | None = None
        self.gpu = [0] * space.layer_count
        self.host = [0] * space.layer_count

    def run(self) -> Solution | None:
        self._level(0, self.space.gpu_steps, self.space.host_steps)
        return self.found

    def _level(self, k: int, gpu_left: int, host_left: int) -> None:
        space = self.space
        if k == space.layer_count - 1:
            self._last(gpu_left, host_left)
            return
        for gpu, host in self._options(k, gpu_left, host_left):
            if space.nodes >= NODES_MAX:
                space.complete = False
                return
            space.nodes += 1
            self.gpu[k], self.host[k] = gpu, host
            if self._can_win(k + 1, gpu_left - gpu, host_left - host):
                self._level(k + 1, gpu_left - gpu, host_left - host)
        self.gpu[k] = self.host[k] = 0

    def _options(self, k: int, gpu_left: int, host_left: int) -> Iterator[tuple[int, int]]:
        """Shares of layer k that read fewer pages than every smaller share."""
        for host in range(host_left + 1):
            pages = math.inf
            for gpu in range(gpu_left + 1):
                now = self.space.pages(k, gpu, host)
                if now < pages and not (host and now == self.space.pages(k, gpu, host - 1)):
                    yield gpu, host
                pages = min(pages, now)

    def _can_win(self, decided: int, gpu_left: int, host_left: int) -> bool:
        """Whether the best that is left for the open layers, given all that is left to each, still beats the best."""
        space = self.space
        pages = [space.pages(k, self.gpu[k], self.host[k]) for k in range(decided)]
        missed = [space.pages(k, self.gpu[k], 0) if self.host[k] else 0.0 for k in range(decided)]
        open_count = space.layer_count - decided
        pages += [space.pages(decided + i, gpu_left, host_left) for i in range(open_count)]
        late = space.lateness(self.devices, pages, missed + [0.0] * open_count)
        used = space.key(late, self.cost, sum(self.gpu[:decided]), sum(self.host[:decided]))
        return late != math.inf and (self.best is None or used < self.best.key)

    def _last(self, gpu_left: int, host_left: int) -> None:
        """The last layer takes what helps and no more; lateness only falls with its share, so bisect for the least."""
        for host_most in sorted({0, host_left}):
            most = self._at(gpu_left, host_most)
            if most is None:
                continue
            wanted = most[:3]

            def enough_gpu(steps: int, host: int = host_most, wanted: tuple[int, float, float] = wanted) -> bool:
                return self._reaches(steps, host, wanted)

            gpu = _least(0, gpu_left, enough_gpu)

            def enough_host(steps: int, gpu: int = gpu, wanted: tuple[int, float, float] = wanted) -> bool:
                return self._reaches(gpu, steps, wanted)

            host = _least(min(1, host_most), host_most, enough_host)
            key = self._at(gpu, host)
            if key is not None and (self.best is None or key < self.best.key):
                self.best = self.found = Solution(key, self.devices, tuple(self.gpu), tuple(self.host))
        self.gpu[-1] = self.host[-1] = 0

    def _at(self, gpu: int, host: int) -> Key | None:
        self.gpu[-1], self.host[-1] = gpu, host
        late, key = self.space.evaluate(self.devices, self.gpu, self.host)
        return None if late == math.inf else key

    def _reaches(self, gpu: int, host: int, wanted: tuple[int, float, float]) -> bool:
        key = self._at(gpu, host)
        return key is not None and key[:3] <= wanted


def _least(first: int, last: int, good: Callable[[int], bool]) -> int:
    """The smallest number in [first, last] that is good, where last is good and so is all above a good one."""
    while first < last:
        middle = (first + last) // 2
        if good(middle):
            last = middle
        else:
            first = middle + 1
    return last
