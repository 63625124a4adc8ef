# SPDX-License-Identifier: Apache-2.0
"""Timing of a cell: step times per arm, arms taking turns, and what the CPU threads recorded of the timed steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_engine.decode_bench.arms import OnDemandArm, PathArm, Step
from slacktier_engine.decode_bench.device import Device

_SHORT_STEP_MS: Final = 5.0
# A pause before each timed step: the host is then ahead of the device, and after long steps the device stays below its
# power limit, where its clock wanders.
_REST_CYCLES: Final = {True: 6_000_000, False: 12_000_000}  # short step or not: about 3 and 6 ms


def percentiles(values: Sequence[float] | npt.NDArray[Any]) -> dict[str, float | None]:
    """p50 and p99, rounded to 0.01; None where there is nothing."""
    if len(values) == 0:
        return {"p50": None, "p99": None}
    low, high = np.percentile(np.asarray(values, np.float64), [50, 99])
    return {"p50": round(float(low), 2), "p99": round(float(high), 2)}


class Turns:
    """Rounds in which each arm runs the same `burst` steps; the first of a burst is not counted where there are more.

    A server's steps follow each other; between two of one arm lie those of all others, and the longer they are, the
    colder its thread's caches. So long steps come in bursts.

    load     puts a step's input where the graphs read it
    prepare  what an arm does before a step outside its graph; how many steps that took on its path
    """

    def __init__(
        self,
        device: Device,
        steps: Sequence[Step],
        load: Callable[[int], None],
        prepare: Callable[[PathArm | OnDemandArm, int], int],
        step_ms: float,
    ) -> None:
        self._device, self._steps, self._load, self._prepare = device, steps, load, prepare
        self._short = step_ms < _SHORT_STEP_MS
        self.burst = 1 if self._short else 4
        self.times_us: dict[str, list[float]] = {s.arm.name: [] for s in steps}
        self._records: dict[str, list[npt.NDArray[np.void]]] = {}

    def run_block(self, first: int, rounds: int) -> None:
        """Rounds over steps [first, first + rounds * burst); the arm that starts moves on."""
        served = {name: path.path.status().steps for name, path in self._paths().items()}
        timed: dict[str, list[int]] = {name: [] for name in served}
        events: list[tuple[str, Any, Any]] = []
        for round_ in range(rounds):
            turn = (first + round_) % len(self._steps)
            for step in [*self._steps[turn:], *self._steps[:turn]]:
                for place in range(self.burst):
                    at = first + round_ * self.burst + place
                    if isinstance(step.arm, PathArm | OnDemandArm):
                        served[step.arm.name] += self._prepare(step.arm, at) + 1
                        step.arm.arm_path()
                    self._load(at)
                    begin, end = self._timed(step)
                    if place or self.burst == 1:
                        events.append((step.arm.name, begin, end))
                        if step.arm.name in timed:
                            timed[step.arm.name].append(served[step.arm.name])
        self._device.synchronize()
        for name, begin, end in events:
            self.times_us[name].append(self._device.elapsed_us(begin, end))
        for name, path in self._paths().items():
            self._keep(name, path, timed[name])

    def _paths(self) -> dict[str, PathArm | OnDemandArm]:
        return {s.arm.name: s.arm for s in self._steps if isinstance(s.arm, PathArm | OnDemandArm)}

    def _timed(self, step: Step) -> tuple[Any, Any]:
        self._device.rest(_REST_CYCLES[self._short])
        begin = self._device.instant()
        step.replay()
        end = self._device.instant()
        self._device.reach(end)
        return begin, end

    def _keep(self, name: str, arm: PathArm | OnDemandArm, timed: list[int]) -> None:
        arm.path.check()
        records = arm.path.records()
        kept = records[np.isin(records["step"], timed)]
        if len(kept) != len(timed):
            raise ConfigError(f"{name}: {len(kept)} of {len(timed)} timed steps were recorded")
        self._records.setdefault(name, []).append(kept)

    def added(self, name: str) -> dict[str, float | None]:
        """Of each step's own difference to the step without lookups."""
        return percentiles(np.subtract(self.times_us[name], self.times_us["none"]))

    def added_of_percentiles(self, name: str) -> dict[str, float]:
        """The difference of the two arms' percentiles, which rounds that happen to differ do not widen."""
        mine, base = self.times_us[name], self.times_us["none"]
        return {f"p{q}": round(float(np.percentile(mine, q) - np.percentile(base, q)), 1) for q in (50, 99)}

    def records(self, name: str) -> npt.NDArray[np.void]:
        """Of the timed steps."""
        return np.concatenate(self._records[name])

    def result(self, name: str) -> dict[str, Any]:
        """What every cell says, whatever it measures."""
        records = self.records(name)
        owned, hits, repeats = (int(records[n].sum()) for n in ("owned", "hits", "repeats"))
        step_us = float(np.median(self.times_us["none"]))
        stocks = {n: self.added(n) for n in ("stock", "sorted") if n in self.times_us}
        better = min(stocks.values(), key=lambda added: added["p50"] or 0.0)
        added = self.added(name)
        net = (added["p50"] or 0.0) - (better["p50"] or 0.0)
        return {
            "hit_rate": round((hits + repeats) / owned, 4) if owned else None,
            "step_ms": round(step_us / 1e3, 4),
            "added_us": added,
            "stock_added_us": better,
            "stock_unsorted_added_us": stocks.get("stock"),
            "stock_sorted_added_us": stocks.get("sorted"),
            "net_of_stock_percent": round(100 * net / step_us, 3),
            "added_of_percentiles_us": self.added_of_percentiles(name),
            "steps": len(self.times_us[name]),
            "pages": [round(float(p), 1) for p in records["pages"].mean(axis=0)],
            "first_read_us": percentiles(records["first_read_ns"][records["misses"].sum(axis=1) > 0] / 1e3),
            "first_layer_resolved_us": percentiles(records["first_resolved_ns"] / 1e3),
            "first_layer_ready_us": percentiles(records["first_ready_ns"] / 1e3),
            "ready_us": percentiles(records["ready_ns"] / 1e3),
        }
