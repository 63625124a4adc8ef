# SPDX-License-Identifier: Apache-2.0
"""TablePlacement: observe, decide by the window rule, apply at tierd and to the pods, report.

The order of the steps of apply() is what keeps streams whole: copies first; bindings to complete copies only; a copy
goes when nobody reads it any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from slacktier.api import BindingSpec, InstanceSpec, Kind, LayerBinding, LayerNeed, ReplicaSpec
from slacktier.api import CurvePoint as ApiPoint
from slacktier.crd_placement import LayerDecision, TablePlacement, TablePlacementSpec, TablePlacementStatus
from slacktier.crd_table import LookupTable
from slacktier_operator import pods
from slacktier_operator.assignment import Assignment, WantedBinding, assign
from slacktier_operator.context import Context
from slacktier_operator.names import Key, instance_name, replica_prefix
from slacktier_operator.observe import allowed_pods, observe
from slacktier_operator.observed import Observed
from slacktier_operator.planning import Verdict, make_verdict, same_places
from slacktier_operator.status import merged, placement_status
from slacktier_operator.store import Object
from slacktier_operator.validation import invalid

KIND = TablePlacement.kind


async def reconcile(context: Context, key: Key) -> float | None:
    """One look at one placement; the seconds until the next, or None where only a change brings one."""
    body = context.store.get(KIND, key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        await _forget(context, key)
        return None
    before = TablePlacementStatus.model_validate(body.get("status") or {})
    try:
        spec = TablePlacementSpec.model_validate(body["spec"])
    except ValidationError as exc:
        await _not_ready(context, key, body, before, "InvalidSpec", invalid(exc, TablePlacementSpec))
        return None
    if not context.state.connected:
        await _not_ready(context, key, body, before, "TierdUnreachable", context.state.why_not)
        return context.settings.poll_s
    missing = _missing_table(context, key, spec)
    if missing is not None:
        await _not_ready(context, key, body, before, *missing)
        return context.settings.poll_s
    return await _decide_and_apply(context, key, body, before, spec)


async def _decide_and_apply(
    context: Context, key: Key, body: Object, before: TablePlacementStatus, spec: TablePlacementSpec
) -> float | None:  # fmt: skip
    seen = observe(context, key, spec, before)
    verdict = make_verdict(seen)
    layers, changed_s = in_force(seen, verdict)
    assignment = assign(seen, layers) if layers else None
    if assignment is not None and not spec.suspend:
        await apply(context, seen, assignment, body)
        seen = observe(context, key, spec, before)
        assignment = assign(seen, layers)
    for pod in allowed_pods(context, key, spec)[1]:
        text = f"namespace {pod['metadata']['namespace']} is not in spec.sharing.namespaces of {key}"
        await pods.say(context, pod, "NotShared", text)
    model = _model(context, key, spec)
    generation = body["metadata"].get("generation", 0)
    status = placement_status(seen, verdict, layers, assignment, before, generation, changed_s, model)
    await context.report(TablePlacement, key, body, status)
    return _look_again(context, seen, verdict, assignment)


def in_force(seen: Observed, verdict: Verdict) -> tuple[tuple[LayerDecision, ...], float]:
    """The layers that serve from now on, and since when they are these."""
    if not verdict.apply or verdict.plan is None or seen.spec.suspend:
        return seen.in_force, seen.changed_s
    if seen.in_force and same_places(seen.in_force, verdict.plan.layers):
        return verdict.plan.layers, seen.changed_s
    return verdict.plan.layers, seen.now_s


async def apply(context: Context, seen: Observed, assignment: Assignment, body: Object) -> None:
    """Make it so: copies, then instances and bindings, then gates; copies that nobody reads go last."""
    ref = (KIND, seen.key)
    for wanted in assignment.replicas:
        spec = ReplicaSpec(table=wanted.table, pool=wanted.pool, members=(wanted.member,))
        await context.put(Kind.REPLICAS, wanted.name, spec, ref)
    for binding in assignment.bindings:
        await _bind(context, seen, binding)
    for action in assignment.pods:
        await pods.act(context, seen, action, assignment)
    for name in assignment.dropped:
        await context.delete(Kind.REPLICAS, name, ref)


async def _bind(context: Context, seen: Observed, wanted: WantedBinding) -> None:
    ref, name = (KIND, seen.key), instance_name(wanted.pod.key)
    await context.put(Kind.INSTANCES, name, _instance(context, seen, wanted), ref)
    await context.put(Kind.BINDINGS, name, binding_spec(seen, wanted.layers), ref)
    await pods.write_binding(context, seen, wanted)


def _instance(context: Context, seen: Observed, wanted: WantedBinding) -> InstanceSpec:
    """The pod's own words where it has said what it needs; where it runs is the cluster's to say."""
    known = context.state.get(Kind.INSTANCES, instance_name(wanted.pod.key))
    if known is None:
        return instance_spec(seen, wanted)
    return InstanceSpec.model_validate(known["spec"]).model_copy(update={"node": wanted.pod.node})


def binding_spec(seen: Observed, layers: Sequence[tuple[LayerDecision, Any]]) -> BindingSpec:
    return BindingSpec(
        decided_by="operator",
        slo_pct=seen.spec.slo_percent,
        layers=tuple(
            LayerBinding(layer_id=layer.layer_id, replicas=tuple(r.name for r in replicas), cache_rows=layer.cache_rows)
            for layer, replicas in layers
        ),
    )


def instance_spec(seen: Observed, wanted: WantedBinding) -> InstanceSpec:
    """What the pod needs, as tierd's sharing rule wants to know it."""
    spec = seen.spec
    return InstanceSpec(
        node=wanted.pod.node,
        model=spec.table,
        step_ms=spec.step_ms,
        ranks=spec.ranks,
        slo_pct=spec.slo_percent,
        cache_rows=spec.cache_rows_per_rank,
        layers=tuple(
            LayerNeed(
                layer_id=layer.layer_id,
                table=seen.tables[layer.layer_id].table,
                window_ms=layer.window_ms,
                misses=tuple(ApiPoint(cache_rows=point.cache_rows, pages=point.pages) for point in layer.misses),
            )
            for layer in spec.layers
        ),
    )


def _look_again(
    context: Context, seen: Observed, verdict: Verdict, assignment: Assignment | None
) -> float | None:  # fmt: skip
    """Changes at tierd and in the cluster bring the next look; time alone brings the end of a stabilization."""
    if verdict.reason == "Stabilizing":
        return max(1.0, seen.changed_s + seen.spec.stabilization_window_seconds - seen.now_s)
    waiting = assignment is not None and (
        assignment.dropped or any(action.pod.gated and not action.lift_gate for action in assignment.pods)
    )
    return context.settings.poll_s if waiting else None


def _missing_table(context: Context, key: Key, spec: TablePlacementSpec) -> tuple[str, str] | None:
    table = context.store.get(LookupTable.kind, Key(key.namespace, spec.table))
    if table is None:
        return "TableNotFound", f"there is no LookupTable {spec.table} in namespace {key.namespace}"
    known = {layer["layerId"]: layer for layer in (table.get("status") or {}).get("layers") or ()}
    listed = (table.get("spec") or {}).get("layers") or ()
    for layer in spec.layers:
        if layer.layer_id not in listed:
            return "LayerNotFound", f"LookupTable {spec.table} has no layer {layer.layer_id}, only {listed}"
        if not known.get(layer.layer_id, {}).get("rows"):
            return "TableNotRead", f"LookupTable {spec.table}: the source of layer {layer.layer_id} is not read yet"
    return None


def _model(context: Context, key: Key, spec: TablePlacementSpec) -> str:
    table = context.store.get(LookupTable.kind, Key(key.namespace, spec.table)) or {}
    model: str = (table.get("spec") or {}).get("model", "")
    return model or spec.table


async def _not_ready(
    context: Context, key: Key, body: Object, before: TablePlacementStatus, reason: str, message: str
) -> None:  # fmt: skip
    """Only say why: what serves goes on serving, and the status keeps what it said of it."""
    generation = body["metadata"].get("generation", 0)
    found = merged(before.conditions, [("Ready", False, reason, message)], generation, context.now_s())
    kept = tuple(condition for condition in before.conditions if condition.type != "Ready")
    status = before.model_copy(update={"observed_generation": generation, "conditions": (*found, *kept)})
    await context.report(TablePlacement, key, body, status)


async def _forget(context: Context, key: Key) -> None:
    """The placement is gone: its bindings first, then its copies."""
    ref = (KIND, key)
    prefix = replica_prefix(key)
    mine = [n for n in context.state.items[Kind.REPLICAS] if n.startswith(prefix)]
    for name, item in list(context.state.items[Kind.BINDINGS].items()):
        replicas = {replica for layer in item["spec"]["layers"] for replica in layer["replicas"]}
        if replicas & set(mine):
            await context.delete(Kind.BINDINGS, name, ref)
            await context.delete(Kind.INSTANCES, name, ref)
    await pods.delete_bindings(context, key)
    for name in mine:
        await context.delete(Kind.REPLICAS, name, ref)
