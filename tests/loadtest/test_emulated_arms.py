# SPDX-License-Identifier: Apache-2.0
"""Placements of the emulated engine, switched between blocks on one server.

Goal: with the paper's devices the arms come in the order in which the window rule puts them. Method: three shuffled
blocks each; an arm may be as slow as the next one within the interval that the run itself gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import before_others

# What other work on the machine does to the generator does not void these figures: all arms share it.
PATIENT = ("--max-lag-ms", "2000", "--max-cpu", "5")


def compare(out: Path, *arguments: str, timeout_s: float = 280) -> dict[str, Any]:
    command = [*before_others(), sys.executable, "-c", "from slacktier_cli.main import main; main()", "loadtest"]
    done = subprocess.run(
        [*command, "compare", "--engine", "emulated", *arguments, *PATIENT, "--json", "--out", str(out)],
        capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[:3000] + done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(300)
def test_arms_on_the_papers_devices_come_in_the_rules_order(tmp_path: Path) -> None:
    arms = ("dram", "nvme-split", "nvme", "tcp")
    devices = set(Path("/dev/shm").glob("slacktier-emulated-*-loadtest-*"))
    report = compare(
        tmp_path, "--arms", ",".join(arms), "--devices", "paper", "--blocks", "3", "--users", "8", "--sessions", "8",
        "--turns", "3", "--output-tokens", "48",
    )  # fmt: skip
    assert {arm["completed"] for arm in report["arms"]} == {report["requests_per_block"] * 3}
    predicted = {arm["name"]: arm["predicted_slowdown_ms"] for arm in report["arms"]}
    assert predicted["dram"] == 0
    assert predicted["dram"] <= predicted["nvme-split"] < predicted["nvme"]
    low = {name: report["overheads"][name]["interval_pct"][0] for name in arms[1:]}
    high = {name: report["overheads"][name]["interval_pct"][1] for name in arms[1:]}
    assert high["nvme-split"] >= 0  # not faster than dram
    assert high["tcp"] >= 0
    assert low["nvme-split"] <= high["nvme"]
    assert low["tcp"] <= high["nvme"]
    assert predicted["tcp"] < predicted["nvme"]
    assert report["overheads"]["nvme"]["tpot_pct"] > 0
    assert set(Path("/dev/shm").glob("slacktier-emulated-*-loadtest-*")) == devices, "the run left a device's queue"


@pytest.mark.timeout(200)
def test_two_instances_share_the_load_and_the_devices(tmp_path: Path) -> None:
    report = compare(
        tmp_path, "--scenario", "shared-table", "--arms", "dram,paper-nvme-shared", "--blocks", "1", "--users", "4",
        "--sessions", "4", "--turns", "1", "--output-tokens", "24",
    )  # fmt: skip
    servers = [block["servers"] for arm in report["details"].values() for block in arm["blocks"]]
    assert [len(pair) for pair in servers] == [2, 2]
    assert all(server["tokens"] > 0 for pair in servers for server in pair)


@pytest.mark.timeout(200)
def test_page_cache_arm_stands_beside_the_others(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: the page cache is capped by a memory cgroup")
    report = compare(
        tmp_path, "--arms", "dram,page-cache,nvme", "--blocks", "1", "--users", "4", "--sessions", "4", "--turns", "1",
        "--output-tokens", "24",
    )  # fmt: skip
    assert [arm["name"] for arm in report["arms"]] == ["dram", "page-cache", "nvme"]
    assert report["arms"][1]["predicted_slowdown_ms"] is None
    (block,) = report["details"]["page-cache"]["blocks"]
    assert block["servers"][0]["mismatched_rows"] == 0
    assert block["servers"][0]["rows_checked"] > 0


@pytest.mark.timeout(200)
def test_prefill_scenario_tells_ttft_by_length_and_number(tmp_path: Path) -> None:
    scenario = tmp_path / "short.yaml"
    scenario.write_text(
        "title: short prompts\nload: {users: 3}\nworkload: {output_tokens: 4}\narms: [dram]\nblocks: 1\n"
        "prefill: {prompt_tokens: [64, 512], together: [1, 3], repeats: 2}\nemulated: {size: 64M}\n"
    )
    report = compare(tmp_path / "out", "--scenario", str(scenario))
    phases = report["details"]["dram"]["phases"]
    assert list(phases) == ["64 tokens, 1 at a time", "64 tokens, 3 at a time", "512 tokens, 1 at a time",
                            "512 tokens, 3 at a time"]  # fmt: skip
    assert report["arms"][0]["completed"] == 2 * (1 + 3) * 2
    assert all(phase["ttft_ms"]["p50"] > 0 for phase in phases.values())


def processes_with(marker: str) -> list[int]:
    """Those whose command line has it."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.timeout(120)
def test_run_that_is_terminated_takes_its_servers_along(tmp_path: Path) -> None:
    out, scenario = tmp_path / "out", tmp_path / "small.yaml"
    scenario.write_text("title: small\nemulated: {size: 64M}\nworkload: {sessions: 64, output_tokens: 64}\n")
    command = [sys.executable, "-c", "from slacktier_cli.main import main; main()", "loadtest", "run"]
    options = ["--engine", "emulated", "--arm", "dram", "--scenario", str(scenario), "--out", str(out)]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as run:
        try:
            end_s = time.monotonic() + 60
            while not (out / "generator.log").exists():  # the servers are ready by then
                assert time.monotonic() < end_s, "no server was started"
                time.sleep(0.1)
            assert len(processes_with(str(out))) > 1
            run.terminate()
            assert run.wait(40) != 0
        finally:
            run.kill()
    assert processes_with(str(out)) == []
