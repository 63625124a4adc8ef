# SPDX-License-Identifier: Apache-2.0
"""Everything around one placement, as the pure modules want it: from the cluster's objects and tierd's resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slacktier.api import (
    BindingSpec,
    BindingStatus,
    InstanceStatus,
    Kind,
    PoolSpec,
    PoolStatus,
    ReplicaSpec,
    ReplicaStatus,
    TableStatus,
)
from slacktier.crd_placement import TablePlacementSpec, TablePlacementStatus
from slacktier.crd_pool import TierPool
from slacktier_operator.context import Context
from slacktier_operator.names import Key, instance_name, replica_prefix, table_name
from slacktier_operator.observed import MemberView, Observed, PodView, PoolView, ReplicaView, ReportView, TableView
from slacktier_operator.pools import measured_read
from slacktier_operator.status import seconds_of
from slacktier_operator.store import Object, is_gated, key_of

HOSTNAME = "kubernetes.io/hostname"


def observe(context: Context, key: Key, spec: TablePlacementSpec, before: TablePlacementStatus) -> Observed:
    """One look; the same objects give the same answer."""
    pools, now_s = _pools(context, spec), context.now_s()
    nodes = {(pool.name, member.name): member.node for pool in pools for member in pool.members}
    return Observed(
        key=key,
        spec=spec,
        tables=_tables(context, key, spec),
        pools=pools,
        replicas=_replicas(context, key, nodes),
        pods=tuple(_pod(context, pod) for pod in allowed_pods(context, key, spec)[0]),
        in_force=before.layers,
        # A clock set back must not hold every move until it is that late again: one window from now at the most.
        changed_s=min(seconds_of(before.changed_at), now_s),
        now_s=now_s,
    )


def allowed_pods(context: Context, key: Key, spec: TablePlacementSpec) -> tuple[list[Object], list[Object]]:
    """(serving pods of this placement, pods of namespaces that may not share it)."""
    pods = context.store.pods_of(key)
    own = {key.namespace, *spec.sharing.namespaces}
    return (
        [pod for pod in pods if pod["metadata"]["namespace"] in own],
        [pod for pod in pods if pod["metadata"]["namespace"] not in own],
    )


def _tables(context: Context, key: Key, spec: TablePlacementSpec) -> dict[int, TableView]:
    """The layers whose source tierd has read."""
    found = {}
    table = Key(key.namespace, spec.table)
    for layer in spec.layers:
        item = context.state.get(Kind.TABLES, table_name(table, layer.layer_id))
        status = TableStatus.model_validate(item["status"]) if item else TableStatus()
        if item and status.rows:
            found[layer.layer_id] = TableView(item["name"], status.rows, status.row_bytes, status.region_bytes)
    return found


def _pools(context: Context, spec: TablePlacementSpec) -> tuple[PoolView, ...]:
    """Pools that the placement may use and that are not being deleted."""
    views = []
    for body in context.store.all(TierPool.kind):
        name = body["metadata"]["name"]
        if (spec.pools and name not in spec.pools) or body["metadata"].get("deletionTimestamp"):
            continue
        item = context.state.get(Kind.POOLS, name)
        if item is not None:
            views.append(_pool(context, name, item))
    return tuple(sorted(views, key=lambda view: view.name))


def _pool(context: Context, name: str, item: Mapping[str, Any]) -> PoolView:
    spec, status = PoolSpec.model_validate(item["spec"]), PoolStatus.model_validate(item["status"])
    measured = measured_read(context, name)
    read = measured or spec.read
    nodes = {member.name: member.node for member in spec.members}
    return PoolView(
        name=name,
        tier=spec.tier,
        members=tuple(
            MemberView(m.name, nodes.get(m.name, m.node), m.state == "ready", m.free_bytes, m.message)
            for m in status.members
        ),
        read=read.read_model() if read else None,
        measured=measured is not None,
        units=spec.units,
        reads_per_s=spec.reads_per_s,
        cost_per_gib=spec.cost_per_gib,
    )


def _replicas(context: Context, key: Key, nodes: Mapping[tuple[str, str], str]) -> tuple[ReplicaView, ...]:
    """This placement's copies at tierd, wanted or not."""
    prefix, views = replica_prefix(key), []
    for name, item in context.state.items[Kind.REPLICAS].items():
        layer, dot, _ = name.removeprefix(prefix).partition(".")
        if not name.startswith(prefix) or not dot or not layer.isdigit():
            continue
        spec, status = ReplicaSpec.model_validate(item["spec"]), ReplicaStatus.model_validate(item["status"])
        member = (spec.members or status.members or ("",))[0]
        views.append(
            ReplicaView(
                name, int(layer), spec.pool, member, nodes.get((spec.pool, member), status.node), status.state,
                status.progress, status.message,
            )
        )  # fmt: skip
    return tuple(sorted(views, key=lambda view: view.name))


def _pod(context: Context, body: Object) -> PodView:
    key = key_of(body)
    name = instance_name(key)
    binding, instance = context.state.get(Kind.BINDINGS, name), context.state.get(Kind.INSTANCES, name)
    bound, rows, version = {}, {}, 0
    if binding:
        spec = BindingSpec.model_validate(binding["spec"])
        bound = {layer.layer_id: layer.replicas for layer in spec.layers}
        rows = {layer.layer_id: layer.cache_rows for layer in spec.layers}
        version = BindingStatus.model_validate(binding["status"]).access_version
    return PodView(
        key=key,
        uid=body["metadata"]["uid"],
        gated=is_gated(body),
        node=body["spec"].get("nodeName", ""),
        nodes_allowed=_nodes_allowed(context, body),
        ready=_is_ready(body),
        bound=bound,
        bound_rows=rows,
        access_version=version,
        report=_report(instance) if instance else None,
    )


def _report(item: Mapping[str, Any]) -> ReportView | None:
    report = InstanceStatus.model_validate(item["status"]).report
    if report is None:
        return None
    layers = {layer.layer_id: layer for layer in report.layers}
    return ReportView(report.ready, report.in_force, report.steps, report.step_ms_mean, layers)


def _is_ready(body: Object) -> bool:
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _nodes_allowed(context: Context, body: Object) -> frozenset[str] | None:
    """Nodes that the pod's own selector and hostname affinity leave; other terms are the scheduler's business."""
    selector = body["spec"].get("nodeSelector") or {}
    affinity = ((body["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    if not selector and not affinity:
        return None
    nodes = list(context.store.all("Node"))
    named = [node["metadata"]["name"] for node in nodes if _has_labels(node, selector)]
    terms = affinity.get("nodeSelectorTerms") or ()
    allowed = [name for name in named if not terms or any(_term_allows(term, name) for term in terms)]
    return frozenset(allowed)


def _has_labels(node: Object, labels: Mapping[str, str]) -> bool:
    return bool(labels.items() <= (node["metadata"].get("labels") or {}).items())


def _term_allows(term: Mapping[str, Any], node: str) -> bool:
    for expression in term.get("matchExpressions") or ():
        if expression["key"] == HOSTNAME and expression["operator"] == "In" and node not in expression["values"]:
            return False
    return True
