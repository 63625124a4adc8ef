# SPDX-License-Identifier: Apache-2.0
"""The fault simulator: the C core, its readers and directory on a virtual kernel whose devices fail in every way.

engine_patch/native/sim/sim.h says what is real and what is not. Every run draws a seed and prints it;
SLACKTIER_SIM_SEED=N runs that one again.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

SIM = Path(__file__).parents[2] / "build/native/sim"
DRAWN = os.environ.get("SLACKTIER_SIM_SEED") or str(random.SystemRandom().getrandbits(48))


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SIM, *args], capture_output=True, text=True, check=False, timeout=110)


def sound(*args: str) -> dict[str, Any]:
    done = run(*args)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_ten_million_rows_through_every_fault_none_wrong() -> None:
    report = sound("--seed", DRAWN, "--rows", "10000000")
    print(report)
    assert report["wrong_rows"] == 0
    assert report["rows_compared"] >= 10_000_000
    assert report["slots_compared"] > 100_000
    assert min(report["reads"].values()) > 100, report["reads"]
    for what in ("failed_steps", "timed_out_steps", "refused_steps", "retries", "bad_records", "resizes", "switches"):
        assert report[what] > 100, what


def test_a_seed_replays_event_by_event() -> None:
    first, second = (sound("--seed", DRAWN, "--rows", "300000") for _ in range(2))
    assert first == second
    assert first["digest"] != sound("--seed", "1" + DRAWN, "--rows", "300000")["digest"]


def test_one_era_alone_does_what_it_does_after_others() -> None:
    alone = [sound("--seed", DRAWN, "--era", str(era)) for era in range(3)]
    together = sound("--seed", DRAWN, "--rows", str(sum(era["rows_compared"] for era in alone)))
    assert {kind: sum(era["reads"][kind] for era in alone) for kind in together["reads"]} == together["reads"]


@pytest.mark.parametrize("rule", ["crc", "tag", "forget"])
def test_without_a_rule_wrong_rows_are_found_and_found_again_in_the_same_place(rule: str) -> None:
    first, second = (run("--seed", DRAWN, "--break", rule) for _ in range(2))
    assert first.returncode == 1
    assert re.search(r"era \d+ step \d+: wrong row: layer \d", first.stderr), first.stderr
    assert second.stderr == first.stderr
    era = re.search(r"--era (\d+)", first.stderr)
    assert era
    assert run("--seed", DRAWN, "--era", era[1], "--break", rule).stderr == first.stderr


@pytest.mark.parametrize("args", [["--seed", "x"], ["--break", "nothing"], ["--seed"], ["--pages", "3"]])
def test_bad_arguments_are_one_line_and_exit_code_2(args: list[str]) -> None:
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
