# SPDX-License-Identifier: Apache-2.0
"""Copies, bindings and gates: a pod starts when its tables are ready, and no copy goes that someone reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_cases import DISK, MEMORY, copy_of, observed, pod_of, report_of, spec_of

from slacktier.api import ReplicaState
from slacktier.crd_placement import LayerDecision
from slacktier_operator.assignment import assign
from slacktier_operator.observed import Observed
from slacktier_operator.planning import make_verdict

COMPLETE = (copy_of(1, MEMORY, "m"), copy_of(14, DISK, "a"), copy_of(14, DISK, "b"))


@pytest.fixture(scope="module")
def layers() -> tuple[LayerDecision, ...]:
    plan = make_verdict(observed()).plan
    assert plan is not None
    return plan.layers


def held(seen: Observed, layers: tuple[LayerDecision, ...]) -> dict[str, str]:
    return {action.pod.key.name: action.held_reason for action in assign(seen, layers).pods if action.held_reason}


def bound_to(seen: Observed, layers: tuple[LayerDecision, ...], layer_id: int) -> set[str]:
    """The members whose copies of the layer the only pod is bound to."""
    (binding,) = assign(seen, layers).bindings
    return {replica.member for layer, replicas in binding.layers if layer.layer_id == layer_id for replica in replicas}


def test_a_local_pool_gets_a_copy_on_every_node_and_a_shared_one_as_many_as_asked(
    layers: tuple[LayerDecision, ...],
) -> None:
    found = assign(observed(), layers)
    assert sorted((wanted.layer_id, wanted.member) for wanted in found.replicas) == [(1, "m"), (14, "a"), (14, "b")]


def test_two_replicas_are_spread_over_nodes(layers: tuple[LayerDecision, ...]) -> None:
    found = assign(observed(spec=spec_of(replicas=2)), layers)
    assert {wanted.member for wanted in found.replicas if wanted.layer_id == 1} == {"m", "n"}
    assert found.short == ()


def test_fewer_places_than_replicas_is_said(layers: tuple[LayerDecision, ...]) -> None:
    one = replace(MEMORY, members=MEMORY.members[:1])
    found = assign(observed(spec=spec_of(replicas=2), pools=(DISK, one)), layers)
    assert found.short == ("layer 1: 1 of 2 copies have a place in pool memory",)


def test_existing_copies_stay_where_they_are(layers: tuple[LayerDecision, ...]) -> None:
    found = assign(observed(replicas=(copy_of(1, MEMORY, "n"),)), layers)
    assert [wanted.member for wanted in found.replicas if wanted.layer_id == 1] == ["n"]


def test_a_lost_copy_is_made_elsewhere(layers: tuple[LayerDecision, ...]) -> None:
    gone = replace(MEMORY, members=(replace(MEMORY.members[0], ready=False), MEMORY.members[1]))
    found = assign(observed(replicas=(copy_of(1, MEMORY, "m", ReplicaState.LOST),), pools=(DISK, gone)), layers)
    assert [wanted.member for wanted in found.replicas if wanted.layer_id == 1] == ["n"]


def test_gate_stays_until_every_layer_has_a_complete_copy(layers: tuple[LayerDecision, ...]) -> None:
    staging = (copy_of(1, MEMORY, "m", ReplicaState.STAGING, 0.4), *COMPLETE[1:])
    seen = observed(pods=(pod_of("p"),), replicas=staging)
    found = assign(seen, layers)
    assert held(seen, layers) == {"p": "TablesNotReady"}
    assert "layer 1: staged 40%" in found.pods[0].held_message
    assert found.bindings == ()


def test_gate_is_lifted_with_the_nodes_that_hold_the_local_table(layers: tuple[LayerDecision, ...]) -> None:
    found = assign(observed(pods=(pod_of("p"),), replicas=COMPLETE), layers)
    (action,) = found.pods
    assert (action.lift_gate, action.nodes) == (True, ("node1", "node2"))
    assert [layer.layer_id for layer, _ in found.bindings[0].layers] == [1, 14]


def test_pods_own_selector_narrows_the_nodes_and_may_leave_none(layers: tuple[LayerDecision, ...]) -> None:
    seen = observed(pods=(pod_of("p", nodes_allowed=frozenset({"node2"})),), replicas=COMPLETE)
    assert assign(seen, layers).pods[0].nodes == ("node2",)
    seen = observed(pods=(pod_of("p", nodes_allowed=frozenset({"node9"})),), replicas=COMPLETE)
    assert held(seen, layers) == {"p": "NoNodeWithTables"}


def test_scheduled_pod_is_bound_to_the_copy_on_its_node(layers: tuple[LayerDecision, ...]) -> None:
    found = assign(observed(pods=(pod_of("p", gated=False, node="node2"),), replicas=COMPLETE), layers)
    copies = {layer.layer_id: replicas for layer, replicas in found.bindings[0].layers}
    assert [replica.node for replica in copies[14]] == ["node2"]


def test_pods_spread_over_the_copies(layers: tuple[LayerDecision, ...]) -> None:
    copies = (*COMPLETE, copy_of(1, MEMORY, "n"))
    pods = tuple(pod_of(f"p{i}", gated=False, node="node1") for i in range(4))
    found = assign(observed(pods=pods, replicas=copies, spec=spec_of(replicas=2)), layers)
    first = [binding.layers[0][1][0].member for binding in found.bindings]
    assert sorted(first) == ["m", "m", "n", "n"]


def test_gated_pods_beyond_the_sharing_limit_wait(layers: tuple[LayerDecision, ...]) -> None:
    pods = (pod_of("a", gated=False, node="node1"), pod_of("b"), pod_of("c"))
    seen = observed(pods=pods, replicas=COMPLETE, spec=spec_of(sharing={"maxInstances": 2}))
    assert held(seen, layers) == {"c": "SharingLimit"}
    assert {binding.pod.key.name for binding in assign(seen, layers).bindings} == {"a", "b"}


def test_old_copy_stays_until_every_pod_has_moved_on(layers: tuple[LayerDecision, ...]) -> None:
    """A pod reads the copy in memory of layer 14; the plan has moved that layer to the disk."""
    old = copy_of(14, MEMORY, "m")
    copies = (*COMPLETE, old)
    new = {1: (copies[0].name,), 14: (copies[1].name,)}
    reading = pod_of(
        "p",
        gated=False,
        node="node1",
        bound={1: (copies[0].name,), 14: (old.name,)},
        access_version=1,
        report=report_of({}),
    )
    assert assign(observed(pods=(reading,), replicas=copies), layers).dropped == ()
    told = replace(reading, bound=new, access_version=2)
    assert assign(observed(pods=(told,), replicas=copies), layers).dropped == (old.name,) or not told.moved_on
    moved = replace(told, report=replace(report_of({}), in_force=2))
    assert assign(observed(pods=(moved,), replicas=copies), layers).dropped == (old.name,)


def test_copy_that_is_read_stays_while_its_successor_is_staged(layers: tuple[LayerDecision, ...]) -> None:
    old = copy_of(14, MEMORY, "m")
    copies = (copy_of(1, MEMORY, "m"), copy_of(14, DISK, "a", ReplicaState.STAGING, 0.5), old)
    reading = pod_of("p", gated=False, node="node1", bound={14: (old.name,)}, access_version=1, report=report_of({}))
    assert reading.moved_on
    assert assign(observed(pods=(reading,), replicas=copies), layers).dropped == ()


def test_fewer_replicas_are_left_one_by_one_once_the_rest_is_complete(layers: tuple[LayerDecision, ...]) -> None:
    """Two copies in memory were wanted and are read; one is wanted now, which is first staged anew, then complete."""
    second = copy_of(1, MEMORY, "n")
    both = {1: (COMPLETE[0].name, second.name), 14: (COMPLETE[1].name,)}
    reading = pod_of("p", gated=False, node="node1", bound=both, access_version=1, report=report_of({}))
    staging = (copy_of(1, MEMORY, "m", ReplicaState.STAGING, 0.5), *COMPLETE[1:], second)
    assert bound_to(observed(pods=(reading,), replicas=staging), layers, 1) == {"n"}
    seen = observed(pods=(reading,), replicas=(*COMPLETE, second))
    assert bound_to(seen, layers, 1) == {"m"}
    assert assign(seen, layers).dropped == ()
    told = replace(reading, bound={1: (COMPLETE[0].name,), 14: (COMPLETE[1].name,)}, access_version=2)
    moved = replace(told, report=replace(report_of({}), in_force=2))
    assert assign(observed(pods=(moved,), replicas=(*COMPLETE, second)), layers).dropped == (second.name,)


def test_copies_that_nobody_reads_go(layers: tuple[LayerDecision, ...]) -> None:
    old = copy_of(14, MEMORY, "m")
    assert assign(observed(replicas=(*COMPLETE, old)), layers).dropped == (old.name,)
