# SPDX-License-Identifier: Apache-2.0
"""From custom resources to running pods, on a real Kubernetes with a real tierd: gates, bindings, moves, teardown."""

from __future__ import annotations

from typing import Any

import objects
import pytest
from harness import wait_for
from system import System, kill


def phase(system: System, name: str) -> str:
    found: str = system.cluster.get("pod", name)["status"].get("phase", "")
    return found


def gates(system: System, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = system.cluster.get("pod", name)["spec"].get("schedulingGates", [])
    return found


def serving(system: System) -> bool:
    return system.cluster.ready("tableplacement", "tiny") == ("True", "Serving")


def status(system: System) -> dict[str, Any]:
    found: dict[str, Any] = system.cluster.get("tableplacement", "tiny").get("status", {})
    return found


def written(system: System) -> int:
    """Bytes that staging has written so far, all tasks together."""
    return sum(task["status"].get("bytes_written", 0) for task in system.items("tasks"))


def test_from_nothing_to_running_pods_with_bindings(clean: System) -> None:
    """Pods first: they wait at their gates until table, pool and placement have come and the copies are complete."""
    cluster = clean.cluster
    cluster.apply(objects.pod("p1"), objects.pod("p2"))
    cluster.apply(objects.table())
    wait_for("the source to be read", lambda: cluster.ready("lookuptable", "tiny")[0] == "True", within_s=60)
    assert len(gates(clean, "p1")) == 1
    cluster.apply(objects.pool("memory", "node1", "node2"), objects.placement(replicas=2))
    wait_for("the placement to serve", lambda: serving(clean), within_s=90)
    for name in ("p1", "p2"):
        wait_for(f"{name} to run", lambda name=name: phase(clean, name) == "Running", within_s=60)
        assert cluster.get("tablebinding", name)["metadata"]["ownerReferences"][0]["name"] == name

        # One complete copy lets the pod start; the second joins the binding when it is complete.
        def copies(name: str = name) -> bool:
            layers = cluster.get("tablebinding", name)["spec"]["layers"]
            return [(layer["layerId"], len(layer["replicas"])) for layer in layers] == [(1, 2), (14, 2)]

        wait_for(f"both copies in {name}'s binding", copies, within_s=60)
    found = status(clean)
    assert found["tiers"] == "L1=tcp,L14=tcp"
    assert found["stagedPercent"] == 100
    assert "window 0.10 ms" in found["layers"][0]["reason"]


def test_pod_of_a_placement_that_is_not_there_waits_and_says_so(clean: System) -> None:
    clean.cluster.apply(objects.pod("lost", "nowhere"))

    def said() -> bool:
        events = clean.cluster.items("events", "--field-selector", "involvedObject.name=lost")
        return any(event["reason"] == "PlacementNotFound" for event in events)

    wait_for("an event", said, within_s=30)
    assert gates(clean, "lost")


def test_table_larger_than_any_pool_is_said_and_nothing_is_staged(clean: System) -> None:
    huge = objects.table(source={"synthetic": {"rows": 1 << 31}})
    clean.cluster.apply(huge, objects.pool("memory", "node1"), objects.placement())
    wait_for(
        "the reason", lambda: clean.cluster.ready("tableplacement", "tiny") == ("False", "DoesNotFit"), within_s=60
    )
    assert clean.items("replicas") == []


def test_manual_plan_waits_for_its_id(clean: System) -> None:
    cluster = clean.cluster
    cluster.apply(objects.table(), objects.pool("memory", "node1"), objects.placement(approval="Manual"))
    plan = wait_for("a plan", lambda: status(clean).get("plan"), within_s=60)
    assert cluster.ready("tableplacement", "tiny")[1] == "WaitingForApproval"
    assert clean.items("replicas") == []
    cluster.apply(objects.placement(approval="Manual", approvedPlan=plan["id"]))
    wait_for("the placement to serve", lambda: serving(clean), within_s=60)


def test_suspended_placement_stages_nothing(clean: System) -> None:
    clean.cluster.apply(objects.table(), objects.pool("memory", "node1"), objects.placement(suspend=True))
    wait_for("the condition", lambda: clean.cluster.ready("tableplacement", "tiny")[1] == "Suspended", within_s=60)
    assert clean.items("replicas") == []


def test_slower_pool_moves_layer_1_first_and_at_most_once_per_window(clean: System) -> None:
    """Two pools, the cheap one quick enough for both layers; then its reads become slower than layer 1's window."""
    cluster = clean.cluster
    tight = {"sloPercent": 2, "windows": (0.5, 3.5), "cacheRowsPerRank": 0}
    cluster.apply(
        objects.table(), objects.pool("cheap", "node1", read={"aUs": 200, "bUs": 0.1}, cost=0.1),
        objects.pool("dear", "node2", read={"aUs": 50}, cost=5.0), objects.placement(**tight),
    )  # fmt: skip
    wait_for("the placement to serve", lambda: serving(clean), within_s=90)
    cluster.apply(objects.pod("p1"))
    wait_for("p1 to run", lambda: phase(clean, "p1") == "Running", within_s=60)
    pools = {layer["layerId"]: layer["pool"] for layer in status(clean)["layers"]}
    assert pools == {1: "cheap", 14: "cheap"}
    before = status(clean)["changedAt"]
    cluster.apply(objects.pool("cheap", "node1", read={"aUs": 1500, "bUs": 0.1}, cost=0.1))
    wait_for(
        "layer 1 to move",
        lambda: [layer["pool"] for layer in status(clean)["layers"]] == ["dear", "cheap"],
        within_s=60,
    )
    after = status(clean)
    assert after["changedAt"] > before
    assert "dear" in after["layers"][0]["reason"]
    new = {layer["replicas"][0] for layer in after["layers"]}

    def bound() -> bool:
        binding = cluster.get("tablebinding", "p1")
        return {layer["replicas"][0] for layer in binding["spec"]["layers"]} == new

    wait_for("p1's binding to follow", bound, within_s=60)
    assert phase(clean, "p1") == "Running"


@pytest.mark.parametrize("killed_first", [False, True])
def test_deleting_everything_in_any_order_ends_within_a_minute(clean: System, killed_first: bool) -> None:
    cluster = clean.cluster
    cluster.apply(objects.table(), objects.pool("memory", "node1"), objects.placement(), objects.pod("p1"))
    wait_for("p1 to run", lambda: phase(clean, "p1") == "Running", within_s=90)
    if killed_first:
        kill(clean.operator)
    cluster.kubectl("delete", "lookuptable/tiny", "--timeout=20s")
    cluster.kubectl("delete", "tierpool/memory", "--timeout=20s")
    cluster.kubectl("delete", "pod/p1", "tableplacement/tiny", "--timeout=60s", timeout_s=70)
    wait_for("the binding to go with its pod", lambda: not cluster.items("tablebinding"), within_s=60)
    if killed_first:
        clean.operator.start()
    wait_for("tierd to be empty", lambda: not clean.items("replicas") and not clean.items("bindings"), within_s=60)


def test_operator_killed_again_and_again_ends_in_the_same_state_and_stages_once(clean: System) -> None:
    cluster = clean.cluster
    cluster.apply(objects.table(), objects.pool("memory", "node1", "node2"), objects.placement(replicas=2))
    cluster.apply(*(objects.pod(f"p{i}") for i in range(3)))
    for _ in range(4):
        kill(clean.operator)
        clean.operator.start()
        try:
            wait_for("something to happen", lambda: serving(clean), within_s=4)
        except AssertionError:
            continue
    wait_for("the placement to serve", lambda: serving(clean), within_s=90)
    for i in range(3):
        wait_for(f"p{i} to run", lambda i=i: phase(clean, f"p{i}") == "Running", within_s=60)
    names = sorted(item["name"] for item in clean.items("replicas"))
    assert names == sorted(f"default.tiny.l{layer}.memory.{node}" for layer in (1, 14) for node in ("node1", "node2"))
    assert len(clean.items("bindings")) == 3
