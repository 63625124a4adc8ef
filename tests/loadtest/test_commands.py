# SPDX-License-Identifier: Apache-2.0
"""`slacktier loadtest` as a person and as a pipeline call it, against servers that misbehave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from misbehaving_server import Behaviour, misbehaving, sent_by

FEW = ("--users", "4", "--sessions", "4", "--turns", "2", "--output-tokens", "12")
# What a busy test machine does to the generator is not what these tests are about.
PATIENT = ("--max-lag-ms", "2000", "--max-cpu", "5")


def loadtest(*arguments: str, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from slacktier_cli.main import main; main()", "loadtest", *arguments]
    return subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False, timeout=100)


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_compare_prints_the_agreed_json_and_writes_a_page(tmp_path: Path) -> None:
    with misbehaving(Behaviour()) as stock, misbehaving(Behaviour(gap_s=0.02)) as slow:
        done = loadtest(
            "compare", "--target", f"stock={stock}", "--target", f"slow={slow}", "--blocks", "2", *FEW, *PATIENT,
            "--json", out=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = report_of(done)
    assert [set(arm) for arm in report["arms"]] == [
        {"name", "tpot_ms", "ttft_ms", "total_s", "completed", "predicted_slowdown_ms"}
    ] * 2
    assert {key for arm in report["arms"] for key in arm["tpot_ms"]} == {"mean", "p50", "p95", "p99", "min", "max"}
    assert [arm["name"] for arm in report["arms"]] == ["stock", "slow"]
    assert {arm["completed"] for arm in report["arms"]} == {16}
    assert report["overheads"]["slow"]["interval_pct"][0] > 30
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "http" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(("limit", "code"), [("500%", 0), ("1.4%", 1)])
def test_overhead_above_the_limit_is_exit_code_1(tmp_path: Path, limit: str, code: int) -> None:
    with misbehaving(Behaviour()) as stock, misbehaving(Behaviour(gap_s=0.02)) as slow:
        done = loadtest(
            "compare", "--target", f"stock={stock}", "--target", f"slow={slow}", "--blocks", "1", *FEW, *PATIENT,
            "--max-tpot-overhead", limit, "--json", out=tmp_path,
        )  # fmt: skip
    assert done.returncode == code
    assert any("at most +1.4 % is allowed" in fault for fault in report_of(done)["faults"]) is bool(code)


def test_both_arms_get_the_same_requests_in_every_round(tmp_path: Path) -> None:
    with misbehaving(Behaviour(gap_s=0.002)) as a, misbehaving(Behaviour(gap_s=0.002)) as b:
        done = loadtest(
            "compare", "--target", f"a={a}", "--target", f"b={b}", "--blocks", "2", "--equal-answers", *FEW, *PATIENT,
            "--json", out=tmp_path,
        )  # fmt: skip
        first, second = sent_by(a), sent_by(b)
    assert done.returncode == 0, done.stdout
    assert sorted(s.tokens for s in first) == sorted(s.tokens for s in second)


def test_server_that_dies_midway_is_told_and_exit_code_1(tmp_path: Path) -> None:
    with misbehaving(Behaviour()) as sound, misbehaving(Behaviour(dies_after=5)) as dying:
        done = loadtest(
            "compare", "--target", f"sound={sound}", "--target", f"dying={dying}", "--blocks", "2", *FEW, *PATIENT,
            "--json", out=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    faults = report_of(done)["faults"]
    assert any("arm dying" in fault for fault in faults)
    assert any("refused" in fault for fault in faults)
    assert (tmp_path / "report.html").exists()


def test_server_that_answers_wrong_is_told_and_exit_code_1(tmp_path: Path) -> None:
    with misbehaving(Behaviour(gap_s=0.002)) as sound, misbehaving(Behaviour(gap_s=0.002, wrong_every=3)) as wrong:
        done = loadtest(
            "compare", "--target", f"sound={sound}", "--target", f"wrong={wrong}", "--blocks", "2", "--equal-answers",
            *FEW, *PATIENT, "--json", out=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert any("answers differ from what the same requests got" in fault for fault in report_of(done)["faults"])


def test_generator_that_is_the_bottleneck_says_so_and_exit_code_1(tmp_path: Path) -> None:
    """More chunks per second than one process can read: its CPU is at its limit whatever the machine."""
    with misbehaving(Behaviour(gap_s=0.0, first_s=0.001)) as url:
        done = loadtest(
            "run", "--target", url, "--users", "64", "--sessions", "128", "--turns", "4", "--output-tokens", "200",
            "--max-cpu", "0.3", "--json", out=tmp_path,
        )  # fmt: skip
    assert done.returncode == 1
    assert any("the generator was the bottleneck" in fault for fault in report_of(done)["faults"])


def test_distributed_workers_measure_what_one_process_does(tmp_path: Path) -> None:
    with misbehaving(Behaviour()) as url:
        done = loadtest(
            "run", "--target", url, "--workers", "2", "--bind", "127.0.0.1:25581", *FEW, *PATIENT, "--json",
            out=tmp_path,
        )  # fmt: skip
        sent = sent_by(url)
    assert done.returncode == 0, done.stdout + done.stderr
    report = report_of(done)
    assert report["generator"]["processes"] == 2
    assert report["arms"][0]["completed"] == len(sent) == 8


def test_placements_are_switched_through_the_server_and_through_a_file(tmp_path: Path) -> None:
    control = tmp_path / "placement.json"
    with misbehaving(Behaviour(gap_s=0.002)) as url:
        targets = [
            {"name": name, "urls": [url], "switch": [
                {"file": str(control), "content": {"layers": {"14": name}}},
                {"url": "/v1/models", "method": "GET"},
            ]}
            for name in ("dram", "nvme")
        ]  # fmt: skip
        scenario = tmp_path / "mine.yaml"
        scenario.write_text(yaml.safe_dump({"title": "two placements", "blocks": 2, "targets": targets}))
        done = loadtest("compare", "--scenario", str(scenario), *FEW, *PATIENT, "--json", out=tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(control.read_text())["layers"]["14"] in ("dram", "nvme")
    assert [arm["completed"] for arm in report_of(done)["arms"]] == [16, 16]


def test_slo_gives_goodput(tmp_path: Path) -> None:
    with misbehaving(Behaviour()) as url:
        done = loadtest(
            "run", "--target", url, "--slo-ttft-ms", "5000", "--slo-tpot-ms", "0.01", *FEW, *PATIENT, "--json",
            out=tmp_path,
        )  # fmt: skip
    (details,) = report_of(done)["details"].values()
    assert details["good_share_of_sent"] == 0
    assert details["good_requests_per_s"] == 0
