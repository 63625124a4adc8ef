# SPDX-License-Identifier: Apache-2.0
"""What a bound instance is told: each layer's readable replicas in order, with paths, addresses and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slacktier.api import (
    Access,
    AccessDelay,
    BindingSpec,
    InstanceSpec,
    LayerAccess,
    PoolSpec,
    ReplicaAccess,
    ReplicaState,
    ReplicaStatus,
)
from slacktier.tiers import REMOTE_TIERS, Tier


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """All that the head knows of a replica that can be read now."""

    name: str
    table: str
    layer_id: int
    table_uuid: str
    rows: int
    pool: PoolSpec
    status: ReplicaStatus
    paths: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    token: str = ""


def replica_access(place: ReplicaPlace) -> ReplicaAccess:
    """One replica as a bound instance reads it."""
    tier, status = place.pool.tier, place.status
    common: dict[str, Any] = {
        "replica": place.name, "tier": tier, "table_uuid": place.table_uuid, "digest": status.digest,
        "epoch": status.epoch, "rows": place.rows,
    }  # fmt: skip
    if tier in REMOTE_TIERS:
        return ReplicaAccess(**common, host=place.host, port=place.port, token=place.token)
    if tier is Tier.EMULATED and place.pool.read is not None:
        read = place.pool.read
        delay = AccessDelay(a_us=read.a_us, b_us=read.b_us, c_us=read.c_us)
        return ReplicaAccess(**common, paths=place.paths, device=device_name(place), delay=delay)
    return ReplicaAccess(**common, paths=place.paths)


def device_name(place: ReplicaPlace) -> str:
    """The queue that an emulated member's readers share, whichever instance they belong to."""
    member = place.status.members[0] if place.status.members else place.name
    return re.sub(r"[^A-Za-z0-9.-]", "-", member)[:64]


def make_access(
    name: str, version: int, spec: InstanceSpec | None, binding: BindingSpec | None, places: Mapping[str, ReplicaPlace]
) -> Access:
    """What the instance is told; unbound, and why, if some layer has no replica that it can read.

    places  the replicas that can be read now, by name
    """
    if binding is None:
        return Access(instance=name, version=version, bound=False, message="no binding has been made yet")
    layers, missing = [], []
    for layer in binding.layers:
        readable = [places[replica] for replica in layer.replicas if replica in places]
        reached = [place for place in readable if _is_within_reach(place, spec)]
        if not reached:
            missing.append(f"layer {layer.layer_id}: {_why(layer.replicas, readable)}")
            continue
        layers.append(
            LayerAccess(
                layer_id=layer.layer_id, table=reached[0].table, cache_rows=layer.cache_rows,
                replicas=tuple(replica_access(place) for place in reached),
            )
        )  # fmt: skip
    if missing:
        return Access(instance=name, version=version, bound=False, message="; ".join(missing)[:4096])
    return Access(instance=name, version=version, bound=True, layers=tuple(layers))


def _is_within_reach(place: ReplicaPlace, spec: InstanceSpec | None) -> bool:
    node = spec.node if spec is not None else ""
    return place.status.state is ReplicaState.COMPLETE and (
        place.pool.tier in REMOTE_TIERS or place.status.node == node
    )


def _why(replicas: tuple[str, ...], readable: list[ReplicaPlace]) -> str:
    if readable:
        return f"{readable[0].name} is on node {readable[0].status.node!r}, which only instances there can read"
    return f"no replica is complete yet ({', '.join(replicas)})"
