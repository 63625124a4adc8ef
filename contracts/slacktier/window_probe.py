# SPDX-License-Identifier: Apache-2.0
"""The window probe's logic: which delays to inject next, and the windows that the measured steps mean.

The engine plugin drives it: inject what `delays_ms()` says, run some decode steps, hand their times to `record()`.
Layer k's lookup completes X after the step began; the window is X - slowdown at the first X that slows the step by more
than noise. Two layers are then delayed at once to check the rule itself. Paper, section 6.3, Table 3 and appendix B.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slacktier.errors import ConfigError
from slacktier.window_model import check_number, exposed_stalls, unique

# Excess over (layer 1's, layer 14's) window in the pairs of Table 3, as shares of that table's step of 29.4 ms.
_CHECK_PAIRS = tuple(
    (first / 29.4, second / 29.4)
    for first, second in ((0.13, -0.35), (0.63, -0.35), (0.63, 2.65), (1.23, 2.65), (1.23, 5.65), (2.23, 5.65))
)


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What counts as noise and which delays are tried.

    noise_ms, noise_sigmas, noise_step_share  a slowdown is real above the largest of: this, so many standard deviations
        of the baseline's steps, this share of a step
    delay_first_ms, delay_growth, delay_max_share  X starts here, grows by this factor, ends at this share of a step
    steps_min   fewest steps that make a measurement
    """

    noise_ms: float = 0.3
    noise_sigmas: float = 3.0
    noise_step_share: float = 0.01
    delay_first_ms: float = 0.2
    delay_growth: float = 1.5
    delay_max_share: float = 1.2
    steps_min: int = 30

    def __post_init__(self) -> None:
        for name in ("noise_ms", "noise_sigmas", "noise_step_share"):
            check_number(f"probe: {name}", getattr(self, name))
        for name in ("delay_first_ms", "delay_max_share", "steps_min"):
            check_number(f"probe: {name}", getattr(self, name), above=0)
        check_number("probe: delay_growth", self.delay_growth, above=1)


@dataclass(frozen=True, slots=True)
class ProbePoint:
    """One injected delay and what the step did."""

    layer_id: int
    delay_ms: float
    slowdown_ms: float
    threshold_ms: float


@dataclass(frozen=True, slots=True)
class PairCheck:
    """Two layers delayed at once: the rule's slowdown from the two windows, and the measured one."""

    delays_ms: tuple[float, float]
    predicted_ms: float
    measured_ms: float


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the probe found. A window at the end of the tried delays is only a lower bound: see `at_least`."""

    step_ms: float
    windows_ms: Mapping[int, float]
    at_least: frozenset[int]
    points: tuple[ProbePoint, ...]
    pairs: tuple[PairCheck, ...]

    @property
    def pair_rmse_ms(self) -> float:
        """Error of the rule with two layers delayed; 0 where one layer alone was probed."""
        if not self.pairs:
            return 0.0
        return math.sqrt(sum((p.predicted_ms - p.measured_ms) ** 2 for p in self.pairs) / len(self.pairs))


@dataclass(slots=True)
class WindowProbe:
    """Drives one probe from the baseline to the two-layer check.

    >>> probe = WindowProbe((1, 14))
    >>> while (delays := probe.delays_ms()) is not None:       # {} is the baseline
    ...     probe.record(run_steps_with(delays))               # doctest: +SKIP
    >>> probe.report().windows_ms                              # doctest: +SKIP
    {1: 0.27, 14: 9.35}

    A baseline is measured before every layer and before the check, so that slow drift does not look like a window.
    """

    layer_ids: tuple[int, ...]
    settings: ProbeSettings = field(default_factory=ProbeSettings)
    _base_ms: float = field(default=0.0, init=False)
    _threshold_ms: float = field(default=0.0, init=False)
    _at: int = field(default=0, init=False)
    _need_base: bool = field(default=True, init=False)
    _delay_ms: float = field(default=0.0, init=False)
    _windows: dict[int, float] = field(default_factory=dict, init=False)
    _at_least: set[int] = field(default_factory=set, init=False)
    _points: list[ProbePoint] = field(default_factory=list, init=False)
    _pairs: list[PairCheck] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not self.layer_ids:
            raise ConfigError("probe: no layers")
        unique("probe: layer", self.layer_ids)
        self.layer_ids = tuple(sorted(self.layer_ids))

    def delays_ms(self) -> dict[int, float] | None:
        """The delay to inject per layer id, measured from the step's start; None when the probe is done."""
        if self._need_base:
            return None if self._done() else {}
        if self._at < len(self.layer_ids):
            return {self.layer_ids[self._at]: self._delay_ms}
        return dict(zip(self._pair_layers(), self._pair_delays(), strict=True)) if not self._done() else None

    def record(self, steps_ms: Sequence[float]) -> None:
        """Take the decode steps measured under `delays_ms()`; raises ConfigError if there are too few or none left."""
        if len(steps_ms) < self.settings.steps_min:
            raise ConfigError(f"probe: {len(steps_ms)} steps measured, expected at least {self.settings.steps_min}")
        if self.delays_ms() is None:
            raise ConfigError("probe: done, nothing to record")
        mean = statistics.fmean(steps_ms)
        if self._need_base:
            self._take_baseline(mean, statistics.pstdev(steps_ms))
        elif self._at < len(self.layer_ids):
            self._take_point(mean - self._base_ms)
        else:
            delays = self._pair_delays()
            windows = [self._windows[k] for k in self._pair_layers()]
            self._pairs.append(PairCheck(delays, sum(exposed_stalls(delays, windows)), mean - self._base_ms))

    def report(self) -> ProbeReport:
        """What was found; raises ConfigError while the probe still wants steps."""
        if self.delays_ms() is not None:
            raise ConfigError("probe: not done yet")
        return ProbeReport(
            self._base_ms, dict(self._windows), frozenset(self._at_least), tuple(self._points), tuple(self._pairs)
        )

    def _take_baseline(self, mean: float, deviation: float) -> None:
        settings = self.settings
        self._base_ms = mean
        noise = (settings.noise_ms, settings.noise_sigmas * deviation, settings.noise_step_share * mean)
        self._threshold_ms = max(noise)
        self._delay_ms = settings.delay_first_ms
        self._need_base = False

    def _take_point(self, slowdown: float) -> None:
        layer_id = self.layer_ids[self._at]
        self._points.append(ProbePoint(layer_id, self._delay_ms, slowdown, self._threshold_ms))
        longest = self.settings.delay_max_share * self._base_ms
        if slowdown > self._threshold_ms:
            self._windows[layer_id] = max(0.0, self._delay_ms - slowdown)
        elif self._delay_ms >= longest:
            self._windows[layer_id] = self._delay_ms
            self._at_least.add(layer_id)
        else:
            self._delay_ms = min(self._delay_ms * self.settings.delay_growth, longest)
            return
        self._at += 1
        self._need_base = True

    def _done(self) -> bool:
        if self._at < len(self.layer_ids):
            return False
        # A window that is only a lower bound predicts nothing, so there is no pair to check.
        alone = len(self.layer_ids) < 2 or not self._at_least.isdisjoint(self._pair_layers())
        return alone or len(self._pairs) == len(_CHECK_PAIRS)

    def _pair_layers(self) -> tuple[int, int]:
        """The layers with the shortest and the longest window."""
        by_window = sorted(self.layer_ids, key=lambda k: (self._windows[k], k))
        first, last = sorted((by_window[0], by_window[-1]))
        return first, last

    def _pair_delays(self) -> tuple[float, float]:
        first, last = self._pair_layers()
        excess = _CHECK_PAIRS[len(self._pairs)]
        return (
            max(0.0, self._windows[first] + excess[0] * self._base_ms),
            max(0.0, self._windows[last] + excess[1] * self._base_ms),
        )
