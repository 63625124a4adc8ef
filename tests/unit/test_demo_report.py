# SPDX-License-Identifier: Apache-2.0
"""What a report says of blocks with known figures: arithmetic, decision, JSON, page and terminal."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from demo_fixtures import block, figures, record, run, server_report, traffic
from rich.console import Console

from slacktier.errors import ContractError
from slacktier_cli.demo.arms import parse_arm
from slacktier_cli.demo.console import print_report
from slacktier_cli.demo.document import document, measured_text
from slacktier_cli.demo.page import render_page
from slacktier_cli.demo.placement import place_tables
from slacktier_cli.demo.results import BlockResult, arm_figures, with_enough_counted
from slacktier_cli.demo.server_report import parse_report
from slacktier_cli.demo.traffic import Served
from slacktier_cli.replay.metrics import Outcome


def test_arm_figures_are_over_all_requests_and_all_blocks() -> None:
    dram, nvme, _ = figures()
    assert dram.tpot is not None
    assert nvme.tpot is not None
    assert (dram.tpot.count, dram.tpot.mean) == (6, pytest.approx(12.0))
    assert (nvme.completed, nvme.warm_up, nvme.cut, nvme.failed) == (6, 2, 2, 0)
    assert nvme.ttft is not None
    assert nvme.ttft.p50 == pytest.approx(50.0)
    assert nvme.layers[0].read_p50_ms == pytest.approx(0.726)
    assert nvme.layers[0].stall_ms == pytest.approx(0.626)


def test_one_disturbed_block_does_not_decide() -> None:
    nvme = parse_arm("nvme")
    blocks = [block(nvme, r, [15.0]) for r in range(3)]
    layer = blocks[1].server.layers[0]
    disturbed = layer.model_copy(update={"read_ms": layer.read_ms.model_copy(update={"p50": 900.0})})
    server = blocks[1].server.model_copy(update={"layers": (disturbed, blocks[1].server.layers[1])})
    blocks[1] = BlockResult(1, nvme, blocks[1].traffic, server)
    assert arm_figures((nvme,), blocks, 0)[0].layers[0].read_p50_ms == pytest.approx(0.726)


def test_comparison_with_dram_is_over_requests_that_both_finished() -> None:
    dram, nvme = parse_arm("dram"), parse_arm("nvme")
    # In round 0 DRAM got two requests further, slow ones, which must not count against it or for it.
    blocks = [block(dram, 0, [10.0, 10.0, 50.0, 50.0]), block(nvme, 0, [11.0, 13.0]), block(nvme, 1, [99.0])]
    _, found = arm_figures((dram, nvme), blocks, 100)
    assert found.paired_count == 2
    assert found.paired_pct == pytest.approx(20.0)


def test_cached_arm_splits_its_rows_and_counts_its_hits() -> None:
    cached = figures()[2]
    assert [layer.cache_rows for layer in cached.layers] == [25_000, 25_000]
    assert [layer.hit_rate for layer in cached.layers] == [0.75, 0.75]


def test_first_requests_are_measured_where_a_block_has_no_others() -> None:
    dram, nvme = parse_arm("dram"), parse_arm("nvme")
    blocks = [block(dram, 0, [12.0]), block(nvme, 0, [])]
    assert with_enough_counted([blocks[0]]) == (blocks[0],)
    found = arm_figures((dram, nvme), with_enough_counted(blocks), 0)
    assert [figure.tpot.count for figure in found if figure.tpot] == [2, 1]
    assert [figure.warm_up for figure in found] == [0, 0]
    assert found[1].paired_pct == pytest.approx(0.0)


def test_arm_with_an_empty_block_or_a_failure_is_not_measured() -> None:
    dram = parse_arm("dram")
    failed = traffic([12.0])
    failed.served.append(Served(0, 2, record(12.0, outcome=Outcome.FAILED)))
    with_failure = BlockResult(0, dram, failed, server_report("dram"))
    assert not arm_figures((dram,), [with_failure], 0)[0].is_measured
    assert not arm_figures((dram,), [block(dram, 0, [12.0]), block(dram, 1, [])], 0)[0].is_measured
    assert not arm_figures((dram,), [], 0)[0].is_measured
    assert arm_figures((dram,), [block(dram, 0, [12.0])], 0)[0].is_measured


def test_decision_puts_the_later_layer_on_disk_and_fits_the_read_model() -> None:
    """Layer 1 reads 48 pages in 0.73 ms against a window of 0.1; layer 14 gets its rows after 1.3 of 3.5 ms."""
    placement = run().placement
    assert [layer.device for layer in placement.decision.layers] == ["host memory", "this disk"]
    assert placement.decision.fits
    disk = next(device for device in placement.problem.devices if device.name == "this disk")
    assert (disk.read.a_us, disk.read.b_us) == (pytest.approx(150.0), pytest.approx(12.0))
    assert [point for layer in placement.problem.layers for point in layer.misses.points] == [
        (0, 48.0),
        (25_000, 12.0),
    ] * 2


def test_decision_says_what_its_placement_cost_at_the_client() -> None:
    arms = (parse_arm("dram"), parse_arm("nvme"), parse_arm("later-nvme"))
    blocks = [block(arms[0], 0, [12.0]), block(arms[1], 0, [15.0])]
    blocks.append(BlockResult(0, arms[2], traffic([12.3]), server_report("nvme")))
    placement = place_tables(
        arm_figures(arms, blocks, 0), row_counts=[10, 10], row_bytes=264, ranks=4, cache_rows=0, slo_pct=1.0
    )
    assert placement.measured is not None
    assert placement.measured.arm.name == "later-nvme"
    assert measured_text(placement).endswith("(arm later-nvme): 12.30 ms per output token, +2.5 % against dram")
    assert run().placement.measured is None


def test_prediction_of_each_arm_is_held_against_its_steps() -> None:
    predictions = {p.arm: p for p in run().placement.predictions}
    assert predictions["nvme"].predicted_ms == pytest.approx(0.626)
    assert predictions["nvme"].measured_ms == pytest.approx(0.626)
    assert predictions["nvme-split"].predicted_ms == pytest.approx(0.194)


def test_one_layer_on_disk_gives_a_fixed_read_time_rather_than_a_slope_through_noise() -> None:
    arms = (parse_arm("dram"), parse_arm("later-nvme"))
    blocks = [block(arms[0], 0, [12.0]), BlockResult(0, arms[1], traffic([12.0]), server_report("nvme"))]
    placement = place_tables(
        arm_figures(arms, blocks, 0), row_counts=[10, 10], row_bytes=264, ranks=4, cache_rows=0, slo_pct=1.0
    )
    disk = next(device for device in placement.problem.devices if device.name == "this disk")
    assert (disk.read.a_us, disk.read.b_us) == (pytest.approx(1302.0), 0.0)


def test_two_samples_give_no_term_for_later_pages() -> None:
    arms = (parse_arm("dram"), parse_arm("nvme"))
    blocks = [block(arms[0], 0, [12.0]), block(arms[1], 0, [15.0])]
    placement = place_tables(
        arm_figures(arms, blocks, 0), row_counts=[10, 10], row_bytes=264, ranks=4, cache_rows=0, slo_pct=1.0
    )
    disk = next(device for device in placement.problem.devices if device.name == "this disk")
    assert (disk.read.a_us, disk.read.b_us, disk.read.c_us) == (pytest.approx(150.0), pytest.approx(12.0), 0.0)


def test_emulated_device_is_known_by_its_own_delay_model() -> None:
    arms = (parse_arm("dram"), parse_arm("paper-nvme-shared"))
    blocks = [block(arms[0], 0, [12.0]), BlockResult(0, arms[1], traffic([15.0]), server_report("nvme"))]
    placement = place_tables(
        arm_figures(arms, blocks, 0), row_counts=[10, 10], row_bytes=264, ranks=4, cache_rows=0, slo_pct=1.0
    )
    device = next(device for device in placement.problem.devices if device.name == "emulated paper-nvme-shared")
    assert (device.read.a_us, device.read.b_us, device.read.c_us) == (300.0, 3.05, 0.37)


def test_report_holds_what_a_reader_checks() -> None:
    report = document(run())
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert (report["rows_checked"], report["rows_checked_serving"], report["mismatched_rows"]) == (1_048_000, 57_600, 0)
    assert report["backend"] == "uring"
    assert "Layer 14 on this disk" in report["decision"]
    assert "window 3.50 ms" in report["decision"]
    assert [table["scaled"] for table in report["tables"]] == [True, True]
    assert report["arms"]["nvme"]["tpot_ms"]["mean"] == pytest.approx(15.0)
    assert report["arms"]["nvme"]["tpot_ms"]["p95"] == pytest.approx(15.0)
    layer = report["arms"]["nvme"]["layers"]["1"]
    assert layer["window_ms"] == 0.1
    assert layer["read_ms"]["p99"] == pytest.approx(1.452)
    assert layer["stall_ms"] == pytest.approx(0.626)
    assert layer["hit_rate"] == 0.0
    assert report["clock_check"]["layers"]["1"]["clock_hit_rate"] == 0.752
    assert report["clock_check"]["agrees_within_points"] == pytest.approx(0.5)
    assert report["faults"] == []


def test_busy_machine_and_short_blocks_are_said() -> None:
    calm = run()
    assert document(calm)["warnings"] == []
    busy = replace(calm, settings={**calm.settings, "load_average": 7.0})
    assert "7.0 runnable threads on 2 cores" in document(busy)["warnings"][0]
    short = replace(calm.figures[0], blocks=tuple(replace(b, first_counted=0) for b in calm.figures[0].blocks))
    assert "first requests are measured too" in document(replace(calm, figures=(short,)))["warnings"][0]


def test_wrong_rows_are_a_fault() -> None:
    report = document(run(mismatched=2))
    assert report["mismatched_rows"] == 12
    assert report["faults"] == ["12 rows differ from the table's pattern"]


class _Links(HTMLParser):
    """Collects whatever a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "data", "action")]


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(document(run()))


def test_page_needs_nothing_but_itself(page: str) -> None:
    links = _Links()
    links.feed(page)
    assert all(link.startswith("#") for link in links.found)
    assert not links.tags & {"script", "link", "img", "iframe", "object"}
    assert "@import" not in page
    assert all(match.startswith("#") for match in re.findall(r"url\(([^)]*)\)", page))
    namespaces = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert namespaces <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_page_shows_the_figures_and_says_emulated_and_scaled(page: str) -> None:
    assert page.count("<svg") == 2
    for text in (
        "emulated engine: no GPU was used",
        "scaled tables",
        "1,048,000",
        "+25.0 %",
        "15.00",
        "layer 14: window 3.50 ms",
    ):
        assert text in page
    assert "sessions about &lt;&amp;&gt; things" in page
    assert "Test CPU &lt;1&gt;" in page


def test_same_report_gives_the_same_page_and_full_tables_are_not_called_scaled(page: str) -> None:
    again = render_page(document(run(is_scaled=False)))
    assert "scaled tables" not in again
    svg = re.compile("<svg.*?</svg>", re.DOTALL)
    assert svg.findall(again) == svg.findall(page)


def test_terminal_shows_table_checks_and_decision(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        print_report(document(run(mismatched=1)), Console(file=file, width=80))
    shown = " ".join((tmp_path / "out").read_text().split())
    for text in ("nvme-split", "1,048,000", "mismatches: 6", "Decision: Layer", "not good: 6 rows differ", "+25.0%"):
        assert text in shown


@pytest.mark.parametrize("broken", [{}, {"engine": "emulated", "layers": 3}])
def test_server_report_that_lacks_something_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ContractError, match="the server's report: "):
        parse_report(broken)
