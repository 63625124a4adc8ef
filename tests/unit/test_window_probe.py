# SPDX-License-Identifier: Apache-2.0
"""The window probe finds the windows of a simulated engine that obeys the rule."""

import random
from collections.abc import Mapping

import pytest

from slacktier.errors import ConfigError
from slacktier.window_model import exposed_stalls
from slacktier.window_probe import ProbeReport, ProbeSettings, WindowProbe


class Engine:
    """Decode steps with injected delays: base + the rule's stalls + noise, and a slow drift per call."""

    def __init__(self, step_ms: float, windows: Mapping[int, float], noise: float = 0.05, drift: float = 0.0) -> None:
        self.step_ms, self.windows, self.noise, self.drift = step_ms, dict(sorted(windows.items())), noise, drift
        self.rng = random.Random(7)

    def steps(self, delays: Mapping[int, float]) -> list[float]:
        stalls = exposed_stalls([delays.get(k, 0.0) for k in self.windows], list(self.windows.values()))
        self.step_ms += self.drift
        return [self.rng.gauss(self.step_ms + sum(stalls), self.noise) for _ in range(40)]


def probe(engine: Engine, settings: ProbeSettings | None = None) -> ProbeReport:
    driver = WindowProbe(tuple(engine.windows), settings or ProbeSettings())
    for _ in range(1000):
        delays = driver.delays_ms()
        if delays is None:
            return driver.report()
        driver.record(engine.steps(delays))
    raise AssertionError("the probe does not end")


def test_two_layers_of_v41_are_found_and_the_rule_holds_with_both_delayed() -> None:
    report = probe(Engine(29.4, {1: 0.27, 14: 9.35}))
    assert report.windows_ms[1] == pytest.approx(0.27, abs=0.05)
    assert report.windows_ms[14] == pytest.approx(9.35, abs=0.05)
    assert report.step_ms == pytest.approx(29.4, abs=0.05)
    assert len(report.pairs) == 6
    assert report.pair_rmse_ms < 0.05
    # The pairs tell the rule from adding the two layers' excesses, as in Table 3.
    delays = report.pairs[-1].delays_ms
    assert sum(max(0, x - w) for x, w in zip(delays, (0.27, 9.35), strict=True)) > report.pairs[-1].measured_ms + 1


def test_layer_without_window_is_found_as_zero() -> None:
    assert probe(Engine(6.9, {0: 0.0, 5: 0.65})).windows_ms[0] == pytest.approx(0, abs=0.05)


def test_windows_of_42_layers_grow_with_depth() -> None:
    windows = {k: 0.13 * k for k in range(0, 42, 3)}
    found = probe(Engine(6.9, windows)).windows_ms
    assert found == pytest.approx(windows, abs=0.06)


def test_noisy_steps_raise_the_threshold_to_three_deviations() -> None:
    report = probe(Engine(46.7, {1: 0.94, 20: 18.8}, noise=0.5))
    assert all(point.threshold_ms > 1.2 for point in report.points)
    assert report.windows_ms[20] == pytest.approx(18.8, abs=0.5)


def test_slow_drift_is_no_window() -> None:
    report = probe(Engine(29.4, {1: 0.27, 14: 9.35}, drift=0.01))
    assert report.windows_ms[14] == pytest.approx(9.35, abs=0.2)


def test_window_beyond_the_longest_delay_is_a_lower_bound() -> None:
    report = probe(Engine(10.0, {1: 0.2, 39: 9.9}), ProbeSettings(delay_max_share=0.5))
    assert report.at_least == {39}
    assert report.windows_ms[39] == pytest.approx(5.0, abs=0.05)
    assert report.pairs == ()


def test_one_layer_needs_no_pair_check() -> None:
    report = probe(Engine(24.8, {1: 0.27}))
    assert report.pairs == ()
    assert report.pair_rmse_ms == 0.0


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 steps measured, expected at least 30"):
        WindowProbe((1,)).record([29.0, 29.1])


def test_report_before_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="not done yet"):
        WindowProbe((1,)).report()


@pytest.mark.parametrize("layers", [(), (1, 1)])
def test_bad_layers_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="probe"):
        WindowProbe(layers)
