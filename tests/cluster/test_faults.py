# SPDX-License-Identifier: Apache-2.0
"""What breaks in the middle of a rollout: it ends in the same state as without the fault, nothing is staged twice."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import objects
import pytest
from harness import RefusedError, wait_for
from rollout import COPIES, PODS, Rollout
from system import System, kill
from tierd_processes import memory_pid

from slacktier_operator.status import timestamp

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
AWAY_S = 60.0
KILLS, KILLS_FULL = 5, 20


def test_rollout_without_a_fault(clean: System) -> None:
    rollout = Rollout(clean)
    rollout.begin()
    rollout.wait_for_the_end()


def api_server_is_down_for_a_minute(system: System) -> None:
    system.cluster.run("stop", "kube-apiserver")
    with pytest.raises(RefusedError):
        system.cluster.kubectl("get", "--raw", "/readyz")
    time.sleep(AWAY_S)
    system.cluster.run("start", "kube-apiserver")


def api_server_closes_all_watches(system: System) -> None:
    system.cluster.run("stop", "kube-apiserver", "KILL")
    system.cluster.run("start", "kube-apiserver")


def etcd_is_killed_and_started(system: System) -> None:
    system.cluster.run("stop", "etcd", "KILL")
    system.cluster.run("start", "etcd")


def etcd_is_down_for_longer_than_a_minute(system: System) -> None:
    """The API server answers, and with errors only."""
    system.cluster.run("stop", "etcd", "KILL")
    time.sleep(AWAY_S + 10)
    system.cluster.run("start", "etcd")


def tierd_is_killed_and_started(system: System) -> None:
    kill(system.tierd)
    time.sleep(3)
    system.tierd.start()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(api_server_is_down_for_a_minute, marks=pytest.mark.full),
        pytest.param(etcd_is_down_for_longer_than_a_minute, marks=pytest.mark.full),
        api_server_closes_all_watches,
        etcd_is_killed_and_started,
        tierd_is_killed_and_started,
    ],
    ids=lambda fault: fault.__name__,
)
def test_rollout_survives(clean: System, fault: Callable[[System], None]) -> None:
    rollout = Rollout(clean)
    rollout.begin()
    wait_for("staging to begin", lambda: clean.items("replicas"), within_s=60)
    fault(clean)
    rollout.wait_for_the_end()
    assert clean.operator.is_running


def test_operator_killed_at_random_moments_of_a_rollout(clean: System, pytestconfig: pytest.Config) -> None:
    """From before its first watch to its last write, in as many rollouts as it takes; the seed replays the moments."""
    seed = int(os.environ.get("SLACKTIER_SEED", str(random.randrange(1 << 32))))
    print(f"SLACKTIER_SEED={seed}")
    moments, killed, rollouts = random.Random(seed), 0, 0
    kills = KILLS_FULL if pytestconfig.getoption("--full") else KILLS
    while killed < kills:
        clean.clear()
        rollout = Rollout(clean)
        rollout.begin()
        rollouts += 1
        while killed < kills:
            time.sleep(moments.uniform(0, 4))
            if rollout.is_over():
                break
            kill(clean.operator)
            clean.operator.start()
            killed += 1
        rollout.wait_for_the_end()
    print(f"killed {killed} times before the end of {rollouts} rollouts")


@pytest.mark.full
def test_node_that_crashes_is_healed_from_and_comes_back(clean: System) -> None:
    """The machine is gone, with its Ray node and what it had in memory, and then its object: what serves goes on by the
    other copies and says what is missing; when it is back, its own copies alone are filled once more.
    """
    cluster, ray = clean.cluster, clean.rays[-1]
    rollout = Rollout(clean)
    rollout.begin()
    rollout.wait_for_the_end()
    lost = [name for name in COPIES if name.endswith(".node2")]
    cluster.run("stop", "node2")
    kill(ray)
    for name in lost:
        pid = memory_pid(clean.folder / "run", name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    try:

        def degraded() -> bool:
            found = cluster.get("tableplacement", "tiny")["status"]["conditions"]
            return any(each["type"] == "Degraded" and each["status"] == "True" for each in found)

        wait_for("the loss to be said", degraded, within_s=90)
        assert cluster.ready("tableplacement", "tiny") == ("True", "Serving")
        cluster.kubectl("delete", "node", "node2")
    finally:
        ray.start()
        cluster.run("start", "node2")
    wait_for("the node to be back", lambda: cluster.kubectl("get", "node", "node2"), within_s=90)
    cluster.kubectl("wait", "--for=condition=Ready", "node/node2", "--timeout=90s", timeout_s=100)

    def is_over() -> bool:
        """Pods of a node that is gone go some time after it, for good: whoever made them makes them again."""
        there = {pod["metadata"]["name"] for pod in cluster.items("pods")}
        if gone := [name for name in PODS if name not in there]:
            print(f"pods that went with the node: {gone}")
            cluster.apply(*(objects.pod(name) for name in gone))
        return rollout.is_over()

    wait_for("all to be as before", is_over, within_s=150)
    rollout.wait_for_the_end(lost=lost)
    assert not degraded()


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime (Debian's package of that name)")
def test_operators_clock_that_jumps_changes_nothing(clean: System, tmp_path: Path) -> None:
    """Its own clock alone: an hour ahead before a rollout, and back again in the middle of it."""
    clock = tmp_path / "clock"
    clock.write_text("+0\n")
    usual = dict(clean.operator.environment)
    clean.operator.stop()
    clean.operator.environment |= {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    clean.operator.start()
    try:
        clock.write_text("+1h\n")
        rollout = Rollout(clean)
        rollout.begin()
        ahead = wait_for("a first change", lambda: changed_at(clean), within_s=60)
        assert ahead > timestamp(time.time() + 1800)
        clock.write_text("+0\n")
        rollout.wait_for_the_end()
        assert changed_at(clean) <= timestamp(time.time())
    finally:
        clean.operator.stop()
        clean.operator.environment = usual
        clean.operator.start()


def changed_at(system: System) -> str:
    found: str = system.cluster.get("tableplacement", "tiny").get("status", {}).get("changedAt", "")
    return found


def test_pod_deleted_while_no_watch_was_open_gives_its_binding_back(clean: System) -> None:
    """The operator stands still, a pod goes, and its watches are closed: a new watch never tells of that pod."""
    rollout = Rollout(clean)
    rollout.begin()
    rollout.wait_for_the_end()
    clean.operator.send(signal.SIGSTOP)
    try:
        clean.cluster.kubectl("delete", "pod", "p0", "--timeout=60s", timeout_s=70)
        api_server_closes_all_watches(clean)
        wait_for("the API server", lambda: clean.cluster.kubectl("get", "--raw", "/readyz"), within_s=60)
    finally:
        clean.operator.send(signal.SIGCONT)
    left = ["default.p1", "default.p2"]
    wait_for("the binding to go", lambda: sorted(each["name"] for each in clean.items("bindings")) == left, within_s=90)
