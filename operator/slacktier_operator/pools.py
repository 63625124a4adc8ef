# SPDX-License-Identifier: Apache-2.0
"""TierPool: its members are a pool at tierd; nodes that come and go change them. The status is what tierd found."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from slacktier import api
from slacktier.api import Kind
from slacktier.crd_model import bytes_quantity, quantity_bytes
from slacktier.crd_pool import MemberSpec, MemberStatus, ReadModelSpec, TierPool, TierPoolSpec, TierPoolStatus
from slacktier.read_model_file import ReadSpec
from slacktier_operator.context import Context
from slacktier_operator.names import Key
from slacktier_operator.status import merged
from slacktier_operator.store import Object
from slacktier_operator.validation import invalid

KIND = TierPool.kind


async def reconcile(context: Context, key: Key) -> float | None:
    """Observe nodes, apply the members, report what tierd found."""
    body = context.store.get(KIND, key)
    if body is None or body["metadata"].get("deletionTimestamp"):
        await _forget(context, key)
        return None
    before = TierPoolStatus.model_validate(body.get("status") or {})
    try:
        spec = TierPoolSpec.model_validate(body["spec"])
    except ValidationError as exc:
        await _report(context, key, body, before, None, ("InvalidSpec", invalid(exc, TierPoolSpec)))
        return None
    members = members_of(spec, list(context.store.all("Node")))
    if not members:
        await _report(context, key, body, before, None, ("NoMembers", "no node has the labels of spec.nodes"))
        return None
    item = await context.put(Kind.POOLS, key.name, pool_spec(spec, members), (KIND, key))
    await _report(context, key, body, before, item, None)
    return None


def members_of(spec: TierPoolSpec, nodes: list[Object]) -> tuple[MemberSpec, ...]:
    """The members as given, or one for every node with the labels."""
    if spec.members is not None:
        return spec.members
    if spec.nodes is None:
        return ()
    template = spec.nodes
    names = sorted(
        node["metadata"]["name"] for node in nodes
        if template.match_labels.items() <= (node["metadata"].get("labels") or {}).items()
    )  # fmt: skip
    return tuple(
        MemberSpec(
            name=name.replace(".", "-"), node=name, path=template.path, capacity=template.capacity,
            hugepages=template.hugepages,
        )
        for name in names
    )  # fmt: skip


def pool_spec(spec: TierPoolSpec, members: tuple[MemberSpec, ...]) -> api.PoolSpec:
    """The pool as tierd takes it."""
    return api.PoolSpec(
        tier=spec.tier,
        members=tuple(
            api.MemberSpec(
                name=member.name, node=member.node, path=member.path, format=member.format, port=member.port,
                capacity_bytes=quantity_bytes(member.capacity) if member.capacity else None, hugepages=member.hugepages,
            )
            for member in members
        ),
        read=ReadSpec(**spec.read.model_dump()) if spec.read else None,
        units=spec.units,
        reads_per_s=spec.reads_per_second,
        cost_per_gib=spec.cost_per_gib,
    )  # fmt: skip


def measured_read(context: Context, pool: str) -> ReadSpec | None:
    """The slowest measured member's read model: what the pool is good for is what its worst place is."""
    found = [
        ReadSpec.model_validate(item["spec"]["read"]) for item in context.state.items[Kind.MEASUREMENTS].values()
        if item["spec"]["pool"] == pool
    ]  # fmt: skip
    return max(found, key=lambda read: read.a_us + 100 * read.b_us, default=None)


async def _report(
    context: Context, key: Key, body: Object, before: TierPoolStatus, item: dict[str, Any] | None,
    fault: tuple[str, str] | None,
) -> None:  # fmt: skip
    generation = body["metadata"].get("generation", 0)
    status = api.PoolStatus.model_validate(item["status"]) if item else api.PoolStatus()
    ready = [member for member in status.members if member.state == "ready"]
    if fault is not None:
        found = ("Ready", False, *fault)
    elif len(ready) == len(status.members) and ready:
        found = ("Ready", True, "MembersReady", f"all {len(ready)} members can hold tables")
    else:
        bad = next((m for m in status.members if m.state != "ready"), None)
        said = f"{bad.name}: {bad.state}: {bad.message}" if bad else "tierd has not looked at the members yet"
        found = ("Ready", bool(ready), "SomeMembersMissing" if ready else "NoMemberReady", said)
    measured = measured_read(context, key.name)
    read = measured or (ReadSpec.model_validate(item["spec"]["read"]) if item and item["spec"].get("read") else None)
    members = tuple(
        MemberStatus(name=m.name, node=m.node, state=m.state, free=bytes_quantity(m.free_bytes), message=m.message)
        for m in status.members
    )
    await context.report(
        TierPool, key, body,
        TierPoolStatus(
            observed_generation=generation,
            conditions=merged(before.conditions, [found], generation, context.now_s()),
            members=members,
            ready_members=f"{len(ready)}/{len(status.members)}",
            free=bytes_quantity(sum(member.free_bytes for member in ready)),
            read=ReadModelSpec(a_us=read.a_us, b_us=read.b_us, c_us=read.c_us, ranks_per_unit=read.ranks_per_unit)
            if read else None,
            measured=measured is not None,
        ),
    )  # fmt: skip


async def _forget(context: Context, key: Key) -> None:
    """The pool is gone: at tierd it goes once no copy is in it; placements move their copies away first."""
    if any(item["spec"]["pool"] == key.name for item in context.state.items[Kind.REPLICAS].values()):
        context.queue.add_after((KIND, key), 5.0)
    else:
        await context.delete(Kind.POOLS, key.name, (KIND, key))
