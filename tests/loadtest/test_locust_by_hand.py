# SPDX-License-Identifier: Apache-2.0
"""Locust's own command line with our locustfile, distributed: a master and two workers, started by hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from misbehaving_server import Behaviour, misbehaving, sent_by

from slacktier_loadtest.handle import LOCUSTFILE

LOCUST = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)]
ENVIRONMENT = {**os.environ, "LOCUST_SKIP_UPDATE_CHECK": "1"}
PORT = "25591"
WORKERS, USERS, TURNS = 2, 4, 2


def started(arguments: list[str], log: Path) -> subprocess.Popen[str]:
    with log.open("w") as errors:
        return subprocess.Popen(
            [*LOCUST, *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, env=ENVIRONMENT, cwd=log.parent
        )


def scenario_file(folder: Path) -> Path:
    path = folder / "few.yaml"
    workload = {"sessions": USERS, "turns_max": TURNS, "output_tokens": 8}
    path.write_text(yaml.safe_dump({"title": "a few", "load": {"users": USERS}, "workload": workload}))
    return path


@pytest.mark.timeout(120)
def test_master_and_two_workers_send_each_request_once_and_measure_all(tmp_path: Path) -> None:
    scenario = scenario_file(tmp_path)
    with misbehaving(Behaviour(gap_s=0.002)) as url, ExitStack() as stack:
        master = started(
            [
                "--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", PORT, "--headless", "--json",
                "--expect-workers", str(WORKERS), "--users", str(USERS), "--spawn-rate", str(USERS),
                "--host", url, "--scenario", str(scenario),
            ],
            tmp_path / "master.log",
        )  # fmt: skip
        workers = [
            started(["--worker", "--master-host", "127.0.0.1", "--master-port", PORT], tmp_path / f"worker{at}.log")
            for at in range(WORKERS)
        ]
        for process in (master, *workers):
            stack.callback(process.kill)
        printed, _ = master.communicate(timeout=90)
        codes = [worker.wait(30) for worker in workers]
        for worker in workers:
            worker.communicate()
        sent = sent_by(url)
    log = (tmp_path / "master.log").read_text()
    assert master.returncode == 0, log[-2000:]
    assert codes == [0] * WORKERS
    # Both had users: Locust deals them evenly, and says so at the start.
    assert len(set(re.findall(r"(\S+) \(index \d+\) reported as ready", log))) == WORKERS, log[-2000:]
    statistics: list[dict[str, Any]] = json.loads(printed)
    assert {each["method"]: each["num_requests"] for each in statistics} == dict.fromkeys(
        ("TTFT", "TPOT", "E2E"), USERS * TURNS
    )
    assert {each["num_failures"] for each in statistics} == {0}
    assert len(sent) == USERS * TURNS
    assert all(each.end == "done" for each in sent)
