# SPDX-License-Identifier: Apache-2.0
"""From the plan in force to copies, bindings and gates: what should exist at tierd and which pods may start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slacktier.crd_model import REPLICAS_MAX
from slacktier.crd_placement import LayerDecision
from slacktier_operator.names import replica_name
from slacktier_operator.observed import Observed, PodView, PoolView, ReplicaView


@dataclass(frozen=True, slots=True)
class WantedReplica:
    name: str
    layer_id: int
    table: str
    pool: str
    member: str


@dataclass(frozen=True, slots=True)
class WantedBinding:
    """One pod's replicas and rows per layer, in order of the layers."""

    pod: PodView
    layers: tuple[tuple[LayerDecision, tuple[ReplicaView, ...]], ...]


@dataclass(frozen=True, slots=True)
class PodAction:
    """What happens to one pod; `nodes` is set where a gate is lifted and a local copy needs them."""

    pod: PodView
    lift_gate: bool
    nodes: tuple[str, ...] = ()
    held_reason: str = ""
    held_message: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """replicas that should exist; dropped: names that nobody reads any more; bindings and pods as they should be."""

    replicas: tuple[WantedReplica, ...]
    dropped: tuple[str, ...]
    bindings: tuple[WantedBinding, ...]
    pods: tuple[PodAction, ...]
    short: tuple[str, ...] = ()


def assign(seen: Observed, layers: Sequence[LayerDecision]) -> Assignment:
    """Everything that follows from these layers being in force."""
    wanted, short = _replicas(seen, layers)
    names = {replica.name for replica in wanted}
    bindings, actions = [], []
    for pod in sorted(seen.pods, key=lambda pod: pod.key):
        binding = _binding(seen, layers, pod, wanted)
        action = _pod_action(seen, layers, pod, binding)
        actions.append(action)
        if binding is not None and (action.lift_gate or not pod.gated):
            bindings.append(binding)
    if len(seen.pods) > seen.spec.sharing.max_instances:
        bindings, actions = _limited(seen, bindings, actions)
    return Assignment(wanted, _dropped(seen, layers, names, bindings), tuple(bindings), tuple(actions), short)


def _replicas(seen: Observed, layers: Sequence[LayerDecision]) -> tuple[tuple[WantedReplica, ...], tuple[str, ...]]:
    """Copies on as many members as asked for, those that are there first; a local pool has one on every node."""
    pools = {pool.name: pool for pool in seen.pools}
    wanted: list[WantedReplica] = []
    short: list[str] = []
    for layer in layers:
        pool, table = pools[layer.pool], seen.tables[layer.layer_id]
        chosen = _members(seen, pool, layer, table.region_bytes)
        if len(chosen) < seen.spec.replicas:
            short.append(
                f"layer {layer.layer_id}: {len(chosen)} of {seen.spec.replicas} copies have a place in pool {pool.name}"
            )
        wanted += [
            WantedReplica(
                replica_name(seen.key, layer.layer_id, pool.name, member),
                layer.layer_id,
                table.table,
                pool.name,
                member,
            )
            for member in chosen
        ]
    return tuple(wanted), tuple(short)


def _members(seen: Observed, pool: PoolView, layer: LayerDecision, size: int) -> list[str]:
    """Members for the copies: those that hold one, then the emptiest, on different nodes as long as there are some."""
    held = {
        replica.member
        for replica in seen.replicas
        if replica.pool == pool.name and replica.layer_id == layer.layer_id and not replica.broken
    }
    nodes: Counter[str] = Counter()
    chosen: list[str] = []
    count = len(pool.members) if pool.local else seen.spec.replicas
    ready = [member for member in pool.members if member.ready and (member.name in held or member.free_bytes >= size)]
    while ready and len(chosen) < count:
        best = min(ready, key=lambda m: (m.name not in held, nodes[m.node], -m.free_bytes, m.name))
        ready.remove(best)
        nodes[best.node] += 1
        chosen.append(best.name)
    return chosen


def _binding(
    seen: Observed, layers: Sequence[LayerDecision], pod: PodView, wanted: Sequence[WantedReplica]
) -> WantedBinding | None:  # fmt: skip
    """The pod's copies of every layer, complete ones only, or None while a layer has none that it can read.

    Copies beyond those that are wanted are read until all of these are complete, and no longer.
    """
    pools = {pool.name: pool for pool in seen.pools}
    parts = []
    for layer in layers:
        local = pools[layer.pool].local if layer.pool in pools else False
        usable = [
            replica for replica in seen.replicas
            if replica.layer_id == layer.layer_id and replica.complete and replica.pool == layer.pool
            and (not local or not pod.node or replica.node == pod.node)
        ]  # fmt: skip
        if not usable:
            return None
        names = {replica.name for replica in wanted if replica.layer_id == layer.layer_id}
        if names <= {replica.name for replica in seen.replicas if replica.complete}:
            usable = [replica for replica in usable if replica.name in names] or usable
        parts.append((layer, tuple(_in_order(seen, pod, usable)[:REPLICAS_MAX])))
    return WantedBinding(pod, tuple(parts))


def _in_order(seen: Observed, pod: PodView, usable: Sequence[ReplicaView]) -> list[ReplicaView]:
    """The copy on the pod's own node first, then one by turns, so that pods spread over the copies."""
    turn = sorted(each.key for each in seen.pods).index(pod.key)
    ordered = sorted(usable, key=lambda replica: replica.name)
    ordered = ordered[turn % len(ordered) :] + ordered[: turn % len(ordered)]
    return sorted(ordered, key=lambda replica: bool(pod.node) and replica.node != pod.node)


def _pod_action(
    seen: Observed, layers: Sequence[LayerDecision], pod: PodView, binding: WantedBinding | None
) -> PodAction:  # fmt: skip
    if not pod.gated:
        return PodAction(pod, lift_gate=False)
    if binding is None:
        return PodAction(pod, False, (), "TablesNotReady", _missing(seen, layers))
    nodes = local_nodes(seen, binding)
    if nodes is None:
        return PodAction(pod, lift_gate=True)
    if pod.nodes_allowed is not None:
        nodes &= pod.nodes_allowed
    if not nodes:
        return PodAction(
            pod, False, (), "NoNodeWithTables", "no node that the pod's own selector allows has copies of all its "
            "local layers; add members to the pool or widen the selector",
        )  # fmt: skip
    return PodAction(pod, True, tuple(sorted(nodes)))


def local_nodes(seen: Observed, binding: WantedBinding) -> set[str] | None:
    """Nodes that hold a copy of every layer that is read locally; None where no layer is."""
    pools = {pool.name: pool for pool in seen.pools}
    nodes: set[str] | None = None
    for layer, replicas in binding.layers:
        if layer.pool in pools and pools[layer.pool].local:
            here = {replica.node for replica in replicas}
            nodes = here if nodes is None else nodes & here
    return nodes


def _missing(seen: Observed, layers: Sequence[LayerDecision]) -> str:
    """Which layers have no complete copy yet, and how far they are."""
    parts = []
    for layer in layers:
        copies = [r for r in seen.replicas if r.layer_id == layer.layer_id and r.pool == layer.pool]
        if not any(copy.complete for copy in copies):
            done = max((copy.progress for copy in copies), default=0.0)
            said = next((copy.message for copy in copies if copy.message), "")
            parts.append(f"layer {layer.layer_id}: staged {done:.0%}" + (f", {said}" if said else ""))
    return "; ".join(parts) or "no node holds copies of all layers"


def _limited(
    seen: Observed, bindings: list[WantedBinding], actions: list[PodAction]
) -> tuple[list[WantedBinding], list[PodAction]]:
    """Pods that run keep their bindings; gated ones beyond the sharing limit wait."""
    limit = seen.spec.sharing.max_instances
    order = sorted(actions, key=lambda action: (action.pod.gated, action.pod.key))
    kept = {action.pod.key for action in order[:limit]}
    message = f"spec.sharing.maxInstances is {limit}, and {len(seen.pods)} pods name this placement"
    limited = [
        PodAction(action.pod, False, (), "SharingLimit", message)
        if action.pod.gated and action.pod.key not in kept
        else action
        for action in actions
    ]
    return [each for each in bindings if not each.pod.gated or each.pod.key in kept], limited


def _dropped(
    seen: Observed, layers: Sequence[LayerDecision], wanted: set[str], bindings: Sequence[WantedBinding]
) -> tuple[str, ...]:
    """Copies that are not wanted and that no pod reads: one goes only once everyone has moved on from it."""
    if not layers:
        return ()
    read: set[str] = set()
    for pod in seen.pods:
        if not pod.moved_on:
            read |= {name for names in pod.bound.values() for name in names}
    read |= {replica.name for binding in bindings for _, replicas in binding.layers for replica in replicas}
    # While a pod has not yet been told of its new copies, the old ones are what it reads.
    new = {binding.pod.key: {r.name for _, copies in binding.layers for r in copies} for binding in bindings}
    for pod in seen.pods:
        told = {name for names in pod.bound.values() for name in names}
        if pod.key not in new or told != new[pod.key]:
            read |= told
    return tuple(sorted(r.name for r in seen.replicas if r.name not in wanted and r.name not in read))
