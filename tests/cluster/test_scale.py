# SPDX-License-Identifier: Apache-2.0
"""1,000 gated serving pods of 100 placements: a cold start, one change, memory, and the calls that a change costs."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import objects
import pytest
from harness import wait_for
from system import System, kill

PLACEMENTS = 100
PODS = 1_000
COLD_S = 60.0
CHANGE_S = 5.0
MEMORY_MIB = 512
BATCH = 250
PROBE_AGE_S = 11.0


@pytest.fixture
def many(clean: System) -> Iterator[System]:
    """Plans wait for an approval, so that the pods stay at their gates and nothing is staged."""
    clean.cluster.apply(objects.table(), objects.pool("memory", "node1", "node2"))
    whole: list[dict[str, Any]] = [placement(i) for i in range(PLACEMENTS)]
    whole += [objects.pod(f"p{i}", f"s{i % PLACEMENTS}") for i in range(PODS)]
    for first in range(0, len(whole), BATCH):
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": whole[first : first + BATCH]})
        clean.cluster.kubectl("create", "-f", "-", stdin=text, timeout_s=180)
    yield clean
    clean.cluster.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=0", timeout_s=180)
    clean.cluster.kubectl("delete", "tableplacements", "--all", "--wait=false", timeout_s=60)


def placement(index: int, **spec: Any) -> dict[str, Any]:
    return objects.placement(f"s{index}", approval="Manual", **spec)


def planned(system: System, generation: int) -> bool:
    """Does every placement's status show a plan for that generation and all of its pods?"""
    found = [each.get("status", {}) for each in system.cluster.items("tableplacements")]
    return len(found) == PLACEMENTS and all(
        each.get("observedGeneration") == generation and each.get("plan") and each.get("pods") == PODS // PLACEMENTS
        for each in found
    )


def idle(system: System) -> dict[str, Any]:
    """The liveness answer, once the queue is empty; kopf keeps an answer for ten seconds."""
    time.sleep(PROBE_AGE_S)
    found: dict[str, Any] = wait_for(
        "an empty queue", lambda: found if (found := health(system))["queue"] == 0 else None, within_s=60
    )
    return found


def health(system: System) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(system.cluster.run("exec", "curl", "-sf", "http://127.0.0.1:8099/healthz"))
    return found


def memory_mib(system: System) -> float:
    """Resident memory of the operator's own process."""
    lines = system.cluster.run("exec", "ps", "-wweo", "rss,args").splitlines()
    return max(int(line.split()[0]) for line in lines if "slacktier_operator.main" in line) / 1024


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_pods_of_a_hundred_placements(many: System) -> None:
    wait_for("all plans", lambda: planned(many, 1), within_s=120)
    kill(many.operator)
    changed = [placement(i, sloPercent=19) for i in range(PLACEMENTS)]
    many.cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": changed}))
    start = time.monotonic()
    many.operator.start()
    wait_for("all plans anew", lambda: planned(many, 2), within_s=COLD_S)
    cold_s = time.monotonic() - start

    calls = Counter(idle(many)["calls"])
    start = time.monotonic()
    print(f"cold start {cold_s:.1f} s and {calls.total()} API calls: {dict(calls)}")
    many.cluster.apply(placement(7, sloPercent=18))
    wait_for(
        "the changed one's plan",
        lambda: many.cluster.get("tableplacement", "s7")["status"]["observedGeneration"] == 3,
        within_s=CHANGE_S,
    )
    change_s = time.monotonic() - start
    cost, used_mib = Counter(idle(many)["calls"]) - calls, memory_mib(many)
    print(f"one change {change_s:.1f} s and {dict(cost)}; {used_mib:.0f} MiB")
    assert used_mib < MEMORY_MIB
    # Lists are the resync's, which comes by itself.
    writes = {call: count for call, count in cost.items() if not call.startswith("list ")}
    assert writes == {"patch_status TablePlacement": 1}
