# SPDX-License-Identifier: Apache-2.0
"""The check of predictions against the emulated engine: its arithmetic, on reports made by the rule itself."""

from dataclasses import replace

import pytest

from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier.window_model import exposed_stalls
from slacktier_cli.agreement.cases import DISKS, FIXED, Case, budget, calibration, predicted
from slacktier_cli.agreement.command import as_json_object
from slacktier_cli.agreement.judge import Measured, judge, load_of
from slacktier_cli.agreement.run import Result
from slacktier_cli.demo.server_report import LayerReport, PrefillReport, ServerReport, Spread

WINDOWS = (0.27, 9.35)
STEP, S = 29.4, 0.05
ROWS = budget(128, 6)


def pages_with(rows: int) -> float:
    """Pages of one layer by cache rows; on a line between the calibrated sizes."""
    return 600.0 - 400.0 * rows / ROWS


def report(case: Case, *, late_ms: float = 0.0) -> Measured:
    """What an engine that obeys the rule reports, late_ms slower than that."""
    pages = [pages_with(rows) for rows in case.cache_rows]
    disk = case.disk
    if disk is None:
        stalls = [0.0, 0.0]
    else:
        times = [
            (disk.a_us + disk.b_us * pages[0] + disk.c_us * pages[1]) / 1000,
            (disk.a_us + disk.b_us * sum(pages)) / 1000,
        ]
        stalls = exposed_stalls([S + t for t in times], WINDOWS)
    step = STEP + sum(stalls) + late_ms
    layers = tuple(
        LayerReport(
            layer_id=layer_id, tier=Tier.EMULATED, window_ms=window, read_ms=Spread(), stall_ms=Spread(mean=d, p50=d),
            lookups=1, hits=0, repeats=0, hit_rate=0.0, pages_per_step=count,
        )
        for layer_id, window, d, count in zip((1, 14), WINDOWS, stalls, pages, strict=True)
    )  # fmt: skip
    return Measured(
        case,
        ServerReport(
            engine="emulated", seconds=1, first_step=0, end_step=100, rows_checked=1, mismatched_rows=0, failed_steps=0,
            steps=100, tokens=1, step_ms=Spread(mean=step, p50=step), layers=layers,
            prefill=PrefillReport(steps=0, tokens=0, layers=()),
        ),
    )  # fmt: skip


CALIBRATED = [report(case) for case in calibration(128, ROWS)]


def test_at_least_twelve_cases_with_two_disks_and_all_splits_for_each_load() -> None:
    cases = predicted(128, ROWS)
    assert len(cases) == 12
    assert {case.disk for case in cases} == set(DISKS)
    assert {case.cache_rows for case in cases} >= {(0, 0), (0, ROWS), (ROWS // 2, ROWS // 2), (ROWS, 0)}
    assert all(sum(case.cache_rows) in (0, ROWS) for case in cases)


def test_calibration_finds_what_made_the_reports() -> None:
    load = load_of(CALIBRATED)
    assert load.step_ms == STEP
    assert load.windows_ms == WINDOWS
    assert load.s_ms == pytest.approx(S)
    assert load.curves[0].pages(ROWS / 2) == pytest.approx(400)


def test_engine_that_obeys_the_rule_agrees_in_every_case() -> None:
    found = judge(load_of(CALIBRATED), [report(case) for case in predicted(128, ROWS)])
    assert all(each.agrees for each in found)
    assert [each.predicted_ms for each in found] == pytest.approx([each.measured_ms for each in found])
    assert max(each.predicted_ms for each in found) > 2


def test_engine_slower_than_a_tenth_and_a_fifth_of_a_millisecond_disagrees() -> None:
    load = load_of(CALIBRATED)
    (off,) = judge(load, [report(Case(128, DISKS[0], (0, 0)), late_ms=0.3)])
    assert off.predicted_ms > 2
    assert not off.agrees
    (near,) = judge(load, [report(Case(128, DISKS[0], (0, 0)), late_ms=0.15)])
    assert near.agrees


def test_curve_never_rises_whatever_a_short_run_measured() -> None:
    noisy = [replace(run, report=report(Case(128, None, (0, 0))).report) for run in CALIBRATED if run.case.disk is None]
    load = load_of([*noisy, report(Case(128, FIXED, (0, 0)))])
    assert {pages for _, pages in load.curves[0].points} == {600.0}


def test_run_without_a_step_is_no_measurement() -> None:
    empty = CALIBRATED[0].report.model_copy(update={"step_ms": Spread()})
    with pytest.raises(SlackTierError, match="no decode step was measured"):
        load_of([Measured(CALIBRATED[0].case, empty), *CALIBRATED[1:]])


def test_json_holds_every_case_and_its_verdict() -> None:
    load = load_of(CALIBRATED)
    found = judge(load, [report(case) for case in predicted(128, ROWS)])
    printed = as_json_object(Result((load,), tuple(found)))
    assert printed["agreeing"] == len(printed["cases"]) == 12
    assert printed["loads"][0]["windows_ms"] == {"1": 0.27, "14": 9.35}
