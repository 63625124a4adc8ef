# SPDX-License-Identifier: Apache-2.0
"""Models fitted from measurements give back what made the measurements."""

import random

import pytest

from slacktier.errors import ConfigError
from slacktier.window_fit import ReadSample, WindowRow, WindowTable, fit_kappa, fit_read_model


def samples(a: float, b: float, c: float, noise: float = 0.0) -> list[ReadSample]:
    rng = random.Random(1)
    grid = [(own, other) for own in (10, 90, 300, 600) for other in (0, 90, 600)]
    return [ReadSample(x, y, a + b * x + c * y + rng.gauss(0, noise)) for x, y in grid]


class TestReadModel:
    def test_exact_samples_give_the_exact_model(self) -> None:
        fit = fit_read_model(samples(300, 3.05, 0.37), ranks_per_unit=4)
        model = fit.model
        assert (model.a_us, model.b_us, model.c_us) == pytest.approx((300, 3.05, 0.37))
        assert (model.ranks_per_unit, model.pages_min, model.pages_max) == (4, 10, 600)
        assert fit.r2 == pytest.approx(1.0)
        assert model.rmse_us == pytest.approx(0, abs=1e-6)

    def test_noise_shows_as_residuals(self) -> None:
        fit = fit_read_model(samples(300, 3.05, 0.37, noise=20))
        assert fit.model.b_us == pytest.approx(3.05, rel=0.05)
        assert 5 < fit.model.rmse_us < 30
        assert abs(fit.worst_us) == max(abs(r) for r in fit.residuals_us)
        assert 0.99 < fit.r2 < 1

    def test_flat_reads_give_no_per_page_term(self) -> None:
        fit = fit_read_model(samples(230, 0, 0))
        assert (fit.model.a_us, fit.model.b_us, fit.model.c_us) == pytest.approx((230, 0, 0), abs=1e-9)

    def test_terms_are_never_negative(self) -> None:
        falling = [ReadSample(10, 0, 300), ReadSample(100, 0, 250), ReadSample(500, 0, 200)]
        model = fit_read_model(falling).model
        assert (model.b_us, model.c_us) == (0, 0)
        assert model.a_us == pytest.approx(250)

    def test_reads_without_other_pages_fit_two_terms(self) -> None:
        only_own = [ReadSample(x, 0, 50 + 2 * x) for x in (1, 10, 100)]
        model = fit_read_model(only_own).model
        assert (model.a_us, model.b_us, model.c_us) == pytest.approx((50, 2, 0))

    @pytest.mark.parametrize(
        ("bad", "says"),
        [
            ([ReadSample(1, 0, 5), ReadSample(2, 0, 6)], "2 read samples, expected at least 3"),
            ([ReadSample(600, y, 5) for y in (0, 1, 2)], "all read samples have 600 own pages"),
        ],
    )
    def test_samples_that_cannot_tell_are_refused(self, bad: list[ReadSample], says: str) -> None:
        with pytest.raises(ConfigError, match=says):
            fit_read_model(bad)

    def test_nan_sample_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="read_us is nan"):
            ReadSample(1, 0, float("nan"))


class TestWindows:
    table = WindowTable((WindowRow(128, 29.4, {1: 0.27, 14: 9.35}), WindowRow(8, 11.0, {1: 0.10, 14: 3.5})))

    def test_measured_load_gives_the_measured_windows(self) -> None:
        assert self.table.at(128).windows_ms == {1: 0.27, 14: 9.35}
        assert self.table.at(8).step_ms == 11.0

    def test_between_loads_windows_are_on_a_line(self) -> None:
        row = self.table.at(68)
        assert row.windows_ms == pytest.approx({1: 0.185, 14: 6.425})
        assert row.step_ms == pytest.approx(20.2)

    def test_above_the_measured_loads_the_highest_holds(self) -> None:
        assert self.table.at(256).windows_ms == {1: 0.27, 14: 9.35}
        assert self.table.sessions_max == 128

    def test_below_the_measured_loads_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="measured from 8 to 128 sessions; 4 is below"):
            self.table.at(4)

    def test_hole_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="layer 14 has no window at 8 sessions"):
            WindowTable((WindowRow(128, 29.4, {1: 0.27, 14: 9.35}), WindowRow(8, 11.0, {1: 0.10})))

    def test_window_longer_than_its_step_is_refused_with_the_unit(self) -> None:
        with pytest.raises(ConfigError, match="window of 270 ms is longer than the step") as caught:
            WindowRow(128, 29.4, {1: 270})
        assert "milliseconds" in caught.value.hint


class TestKappa:
    def test_constant_excess_is_kappa(self) -> None:
        fit = fit_kappa([0.35, 1.85, 2.1], [0.25, 1.75, 2.0])
        assert fit.kappa_ms == pytest.approx(0.1)
        assert fit.rmse_ms == pytest.approx(0, abs=1e-12)

    def test_kappa_is_never_negative(self) -> None:
        assert fit_kappa([0.1, 0.2], [0.3, 0.4]).kappa_ms == 0

    def test_unpaired_runs_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="expected pairs"):
            fit_kappa([0.1], [])
