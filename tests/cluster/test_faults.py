# SPDX-License-Identifier: Apache-2.0
"""What breaks in the middle of a rollout: it ends in the same state as without the fault, nothing is staged twice."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from harness import wait_for
from rollout import Rollout
from system import System, kill


def test_rollout_without_a_fault(clean: System) -> None:
    rollout = Rollout(clean)
    rollout.begin()
    rollout.wait_for_the_end()


def api_server_closes_all_watches(system: System) -> None:
    system.cluster.run("stop", "kube-apiserver", "KILL")
    system.cluster.run("start", "kube-apiserver")


def etcd_is_killed_and_started(system: System) -> None:
    system.cluster.run("stop", "etcd", "KILL")
    system.cluster.run("start", "etcd")


def tierd_is_killed_and_started(system: System) -> None:
    kill(system.tierd)
    time.sleep(3)
    system.tierd.start()


@pytest.mark.parametrize(
    "fault",
    [
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
