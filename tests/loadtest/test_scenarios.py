# SPDX-License-Identifier: Apache-2.0
"""Every scenario that ships, run as it ships: its arms, devices and phases, with fewer and shorter requests.

The emulated engine serves those that compare placements; those that compare running servers get one for each name.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import Behaviour, misbehaving
from tierd_processes import SLACKTIER

from slacktier_loadtest.arms import PAGE_CACHE
from slacktier_loadtest.scenario import load_scenario, scenario_names

SHIPPED = {name: load_scenario(name) for name in scenario_names()}
# What other work on the machine does to the generator does not void these figures: all arms share it.
PATIENT = ("--max-lag-ms", "5000", "--max-cpu", "5")
SHORT = ("--blocks", "1", "--users", "4", "--sessions", "4", "--turns", "2", "--output-tokens", "8")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all: the tables are staged once."""
    return tmp_path_factory.mktemp("scenarios")


def compare(name: str, out: Path, *options: str) -> dict[str, Any]:
    command = [*SLACKTIER, "loadtest", "compare", "--scenario", name, "--out", str(out), *PATIENT, "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stdout[:3000] + done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [name for name, scenario in SHIPPED.items() if scenario.arms])
def test_scenario_of_placements_runs_on_the_emulated_engine(name: str, out: Path) -> None:
    scenario = SHIPPED[name]
    if PAGE_CACHE in scenario.arms and os.geteuid() != 0:
        pytest.skip("needs root: the page cache is capped by a memory cgroup")
    options = list(SHORT)
    if scenario.prefill is not None:
        options += ["--prompt-tokens", "64,256"]
    if scenario.pause_s[1]:
        options += ["--pause", "0.1-0.2"]
    report = compare(name, out, "--engine", "emulated", *options)
    assert [arm["name"] for arm in report["arms"]] == list(scenario.arms)
    assert report["baseline"] == scenario.baseline
    assert {arm["completed"] for arm in report["arms"]} == {report["requests_per_block"]}
    blocks = [block for arm in report["details"].values() for block in arm["blocks"]]
    assert {len(block["servers"]) for block in blocks} == {scenario.emulated.instances}
    assert sum(server["mismatched_rows"] for block in blocks for server in block["servers"]) == 0
    if scenario.prefill is not None:
        phases = report["details"][scenario.arms[0]]["phases"]
        assert len(phases) == 2 * len(scenario.prefill.together)
    assert report["scenario"]["emulated"] == scenario.model_dump(mode="json")["emulated"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [name for name, scenario in SHIPPED.items() if scenario.targets])
def test_scenario_of_servers_runs_against_one_for_each_name(name: str, tmp_path: Path) -> None:
    scenario = SHIPPED[name]
    with ExitStack() as stack:
        urls = {
            target.name: stack.enter_context(misbehaving(Behaviour(gap_s=0.002))) for target in scenario.targets
        }  # fmt: skip
        targets = [part for at, url in urls.items() for part in ("--target", f"{at}={url}")]
        report = compare(name, tmp_path, *targets, *SHORT, "--pause", "0", "--api", "chat")
    assert [arm["name"] for arm in report["arms"]] == [target.name for target in scenario.targets]
    assert report["baseline"] == scenario.baseline
    assert {arm["completed"] for arm in report["arms"]} == {report["requests_per_block"]}
