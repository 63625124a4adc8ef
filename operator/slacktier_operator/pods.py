# SPDX-License-Identifier: Apache-2.0
"""Serving pods: their TableBinding, the affinity that a local table needs, their gate. And pods that are gone."""

from __future__ import annotations

from typing import Any

from slacktier.api import BindingStatus, Kind
from slacktier.crd_binding import (
    BindingLayer,
    BindingLayerStatus,
    PlacementRef,
    PodRef,
    TableBinding,
    TableBindingSpec,
    TableBindingStatus,
)
from slacktier.crd_model import API_VERSION, GATE, PLACEMENT_LABEL
from slacktier_operator.assignment import Assignment, PodAction, WantedBinding
from slacktier_operator.context import Context
from slacktier_operator.names import Key, instance_name
from slacktier_operator.observe import HOSTNAME
from slacktier_operator.observed import Observed
from slacktier_operator.status import merged
from slacktier_operator.store import Object, is_over, key_of, placement_of

POD = "Pod"
BINDING = TableBinding.kind


async def reconcile_pod(context: Context, key: Key) -> float | None:
    """A pod that is over or gone gives its binding back; its TableBinding goes with its owner."""
    body = context.store.get(POD, key)
    name = instance_name(key)
    if body is not None and not is_over(body):
        placement = placement_of(body)
        if placement is not None and context.store.get("TablePlacement", placement) is None:
            await say(context, body, "PlacementNotFound", f"there is no TablePlacement {placement}")
        return None
    if context.state.get(Kind.BINDINGS, name) is not None or context.state.get(Kind.INSTANCES, name) is not None:
        ref = (POD, key)
        await context.delete(Kind.BINDINGS, name, ref)
        await context.delete(Kind.INSTANCES, name, ref)
    return None


async def act(context: Context, seen: Observed, action: PodAction, assignment: Assignment) -> None:
    """Lift the gate of a pod whose tables are ready, or say why it waits."""
    body = context.store.get(POD, action.pod.key)
    if body is None or not action.pod.gated:
        return
    if not action.lift_gate:
        await say(context, body, action.held_reason, action.held_message)
        return
    if not any(each.pod.key == action.pod.key for each in assignment.bindings):
        return
    await context.kube.patch_pod(action.pod.key, lift_operations(body, action.nodes))
    await context.kube.event(body, "Normal", "TablesReady", f"bound by {seen.key}; may be scheduled")


def lift_operations(body: Object, nodes: tuple[str, ...]) -> list[dict[str, Any]]:
    """A JSON patch: the affinity, then the gate; it fails if someone changed the gates in between."""
    gates = body["spec"]["schedulingGates"]
    index = next(i for i, gate in enumerate(gates) if gate["name"] == GATE)
    lift = [
        {"op": "test", "path": f"/spec/schedulingGates/{index}/name", "value": GATE},
        {"op": "remove", "path": f"/spec/schedulingGates/{index}"},
    ]
    return [*_affinity(body, nodes), *lift] if nodes else lift


def _affinity(body: Object, nodes: tuple[str, ...]) -> list[dict[str, Any]]:
    """The nodes with the pod's local tables, added to every term that it has: a gated pod's may only be narrowed."""
    expression = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = body["spec"].get("affinity") or {}
    terms = ((affinity.get("nodeAffinity") or {}).get(required) or {}).get("nodeSelectorTerms")
    if terms:
        path = f"/spec/affinity/nodeAffinity/{required}/nodeSelectorTerms"
        return [
            {"op": "add", "path": f"{path}/{i}/matchExpressions/-", "value": expression}
            if term.get("matchExpressions")
            else {"op": "add", "path": f"{path}/{i}/matchExpressions", "value": [expression]}
            for i, term in enumerate(terms)
        ]
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    node_affinity[required] = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return [{"op": "add", "path": "/spec/affinity", "value": {**affinity, "nodeAffinity": node_affinity}}]


async def write_binding(context: Context, seen: Observed, wanted: WantedBinding) -> None:
    """The pod's TableBinding, owned by the pod so that it goes with it."""
    pod = wanted.pod
    spec = TableBindingSpec(
        pod=PodRef(name=pod.key.name, uid=pod.uid),
        placement=PlacementRef(namespace=seen.key.namespace, name=seen.key.name),
        instance=instance_name(pod.key),
        layers=tuple(
            BindingLayer(
                layer_id=layer.layer_id, replicas=tuple(r.name for r in replicas), tier=layer.tier,
                cache_rows=layer.cache_rows,
            )
            for layer, replicas in wanted.layers
        ),
    )  # fmt: skip
    body = spec.model_dump(mode="json", by_alias=True)
    known = context.store.get(BINDING, pod.key)
    if known is not None and known["spec"] == body:
        return
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.key.name, "uid": pod.uid, "controller": True}
    labels = {PLACEMENT_LABEL: seen.key.name, "app.kubernetes.io/managed-by": "slacktier-operator"}
    metadata = {"name": pod.key.name, "namespace": pod.key.namespace, "labels": labels, "ownerReferences": [owner]}
    whole = {"apiVersion": API_VERSION, "kind": BINDING, "metadata": metadata, "spec": body}
    if known is None:
        await context.kube.create(TableBinding, pod.key.namespace, whole)
    else:
        await context.kube.patch(TableBinding, pod.key, {"spec": body})


async def reconcile_binding(context: Context, key: Key) -> float | None:
    """A TableBinding's status: what its pod reports to tierd. One whose pod is another or gone is deleted."""
    body = context.store.get(BINDING, key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        return None
    pod = context.store.get(POD, key)
    if pod is None or pod["metadata"]["uid"] != body["spec"]["pod"]["uid"]:
        await context.kube.delete(TableBinding, key)
        return None
    name = instance_name(key)
    context.own(Kind.BINDINGS, name, (BINDING, key))
    item = context.state.get(Kind.BINDINGS, name)
    status = BindingStatus.model_validate(item["status"]) if item else BindingStatus()
    before = TableBindingStatus.model_validate(body.get("status") or {})
    await context.report(TableBinding, key, body, binding_status(context, body, before, status))
    return None


def binding_status(
    context: Context, body: Object, before: TableBindingStatus, status: BindingStatus
) -> TableBindingStatus:  # fmt: skip
    generation = body["metadata"].get("generation", 0)
    in_force = status.in_force_version >= status.access_version > 0
    rates = [layer.hit_rate for layer in status.layers if layer.hit_rate is not None]
    found = (
        ("Ready", True, "InForce", "the pod reads by this binding") if in_force
        else ("Ready", False, "NotInForce", "the pod has not reported to read by this binding yet")
    )  # fmt: skip
    return TableBindingStatus(
        observed_generation=generation,
        conditions=merged(before.conditions, [found], generation, context.now_s()),
        in_force=in_force,
        layers=tuple(
            BindingLayerStatus(
                layer_id=layer.layer_id, replica=layer.replica, tier=layer.tier.value, hit_rate=layer.hit_rate,
                read_ms=layer.measured_read_ms, stall_ms=layer.measured_stall_ms, window_ms=layer.window_ms,
            )
            for layer in status.layers
        ),
        hit_rate=f"{100 * sum(rates) / len(rates):.0f}%" if rates else "",
        tiers=",".join(f"L{layer['layerId']}={layer.get('tier', '')}" for layer in body["spec"]["layers"]),
    )  # fmt: skip


async def delete_bindings(context: Context, placement: Key) -> None:
    """TableBindings of a placement that is gone."""
    for body in context.store.all(BINDING):
        named = body["spec"]["placement"]
        if Key(named["namespace"], named["name"]) == placement:
            await context.kube.delete(TableBinding, key_of(body))


async def say(context: Context, body: Object, reason: str, message: str) -> None:
    """An Event on the pod, once for each thing that there is to say."""
    if context.said.get(key_of(body)) != (reason, message):
        context.said[key_of(body)] = (reason, message)
        await context.kube.event(body, "Warning", reason, message)
