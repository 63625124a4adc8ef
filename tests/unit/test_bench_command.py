# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench`: real passes over the directory, and how figures are printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from slacktier.errors import ConfigError
from slacktier_cli.commands.bench import app
from slacktier_cli.results import figure
from slacktier_native import bench_reads
from slacktier_tierd import bench as bench_stage

ARM = {
    "iops": 90123.4, "burst_ms_p50": 2.125, "burst_ms_p99": 3.5, "cpu_us_per_page": 1.25,
    "machine_cpu_us_per_page": 2.5,
}  # fmt: skip


def invoke(*args: str) -> str:
    result = CliRunner().invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_directory_json_is_one_object_with_figures_and_machine() -> None:
    report = json.loads(invoke("directory", "--tokens", "2", "--cache-rows", "200", "--steps", "3", "--json"))
    assert report["bench"] == "directory"
    assert report["machine"]["cores"] >= 1
    assert report["p50_us"] > 0
    assert len(report["cells"]) == 3


def test_directory_table_has_a_line_per_hit_rate() -> None:
    lines = invoke("directory", "--tokens", "2", "--cache-rows", "200", "--steps", "3").splitlines()
    assert lines[1].split() == ["hit", "rate", "pass", "us", "p50", "p99", "first", "miss", "us", "p50"]
    assert len(lines) == 6


def test_hash_json_has_rates_of_prefill_and_decode() -> None:
    report = json.loads(invoke("hash", "--tokens", "16", "--sequences", "2", "--repeats", "2", "--json"))
    assert report["bench"] == "hash"
    assert report["ids_per_token"] == 48
    assert report["tokens_per_s_per_core"]["best"] >= report["tokens_per_s_per_core"]["median"] > 0
    assert report["step_us"]["p99"] >= report["step_us"]["p50"] > 0


def test_reads_table_has_a_line_per_arm_and_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def run(path: Path, **options: Any) -> dict[str, Any]:
        asked.update(options, path=path)
        return {"steps": [{"pages": count, "arms": {"fio": ARM, "uring": ARM}} for count in options["pages"]]}

    monkeypatch.setattr(bench_reads, "run", run)
    out = invoke("reads", str(tmp_path / "a.region"), "--pages", "50", "--pages", "750", "--blocks", "2")
    assert asked == {"path": tmp_path / "a.region", "pages": (50, 750), "blocks": 2, "seconds": 1.5, "seed": 1}
    assert [line.split() for line in out.splitlines() if line.startswith("uring")] == [
        ["uring", "50", "90,123", "2.12", "3.5", "1.25", "2.5"],
        ["uring", "750", "90,123", "2.12", "3.5", "1.25", "2.5"],
    ]


def test_reads_say_how_to_get_an_arm_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(path: Path, **options: Any) -> dict[str, Any]:
        return {"steps": [], "not_run": {"engramdb": "not installed: pip install engramdb-python"}}

    monkeypatch.setattr(bench_reads, "run", run)
    out = invoke("reads", str(tmp_path / "a.region"))
    assert "engramdb: not installed: pip install engramdb-python" in out


def test_bursts_are_distinct_pages_even_of_a_small_region() -> None:
    drawn = bench_reads._draw(np.random.default_rng(0), 60, 50)
    assert len(set(drawn.tolist())) == drawn.size == 50


def test_record_json_has_a_cost_per_row_for_each_arm() -> None:
    report = json.loads(invoke("record", "--mib", "1", "--blocks", "2", "--json"))
    assert (report["rows"], report["row_bytes"], report["record_bytes"]) == (3840, 264, 272)
    assert len(report["arms"]) == 6
    assert all(arm["ns_per_row"] > 0 for arm in report["arms"].values())
    assert report["arms"]["memcpy of the pages"]["ratio_to_memcpy"] == 1


def test_rows_json_compares_several_clients_with_a_lone_one() -> None:
    args = ("--rows", "10", "--clients", "2", "--pace-ms", "1", "--requests", "2", "--blocks", "1", "--json")
    report = json.loads(invoke("rows", *args))
    assert report["requests"] == 10
    assert len(report["clients_p50_ms"]) == 2
    assert report["ratio_to_lone"] == pytest.approx(max(report["clients_p50_ms"]) / report["lone_p50_ms"])


def test_stage_table_has_a_line_per_arm_with_its_spread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def run(directory: Path, **options: Any) -> dict[str, Any]:
        asked.update(options, directory=directory)
        measured = {f"{arm}_gib_s": [0.5, 1.0, 0.75] for arm in ("stage", "fio", "verify")}
        medians = dict.fromkeys(measured, 0.75)
        return {**medians, "ratio_to_fio": 0.9, "blocks": measured}

    monkeypatch.setattr(bench_stage, "run", run)
    out = invoke("stage", "--dir", str(tmp_path), "--size", "64M", "--blocks", "3")
    assert (asked["directory"], asked["size_bytes"], asked["blocks"]) == (tmp_path, 64 << 20, 3)
    assert [line.split() for line in out.splitlines()[2:5]] == [
        [f"{arm},", "GiB/s", "0.75", "0.5", "1"] for arm in ("stage", "fio", "verify")
    ]
    assert "staging at 90% of fio" in out


def test_stage_of_a_directory_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        invoke("stage", "--dir", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("value", "text"), [(0.12345, "0.123"), (12345.6, "12,346"), (4096, "4,096"), ("uring", "uring"), (2.0, "2")]
)
def test_figures_have_three_significant_digits(value: Any, text: str) -> None:
    assert figure(value) == text
