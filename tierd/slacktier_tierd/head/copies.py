# SPDX-License-Identifier: Apache-2.0
"""What to do about each replica: where it goes, and what its superblock, its memory node or its node's death ask for.

Pure: the reconciler looks, these functions judge, the reconciler acts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from slacktier.api import MemberSpec, PoolSpec, ReplicaSpec, ReplicaState, ReplicaStatus
from slacktier_tierd.head.placing import MemberFacts, PlaceId
from slacktier_tierd.memory_node.config import MemoryNodeStatus
from slacktier_tierd.node.devices import RegionFound

RETRY_S_MAX: Final = 60.0


class Need(StrEnum):
    """What a replica needs next."""

    NOTHING = "nothing"
    WAIT = "wait"
    STAGE = "stage"
    START = "start"  # a memory node


@dataclass(slots=True)
class Work:
    """What the reconciler remembers of one replica between two looks."""

    generation: int = 0
    members: tuple[MemberSpec, ...] = ()
    is_running: bool = False
    failures: int = 0
    retry_s: float = 0.0
    looked_s: float = -1e18
    region: RegionFound | None = None
    memory: MemoryNodeStatus | None = None
    restarts: int = 0
    table_uuid: str = ""
    status: ReplicaStatus = field(default_factory=ReplicaStatus)

    @property
    def node(self) -> str:
        return self.members[0].node if self.members else ""

    def failed(self, now_s: float) -> None:
        """Try again later, and later still if it goes on."""
        self.failures += 1
        self.retry_s = now_s + min(RETRY_S_MAX, 2.0**self.failures)


def choose_member(
    pool_name: str, pool: PoolSpec, members: Mapping[PlaceId, MemberFacts], *, used: Collection[str], byte_count: int,
    alive: frozenset[str],
) -> str | None:  # fmt: skip
    """The member with the most room on a node that is alive; None where there is none.

    used  members that hold a copy of the same table
    """
    best: tuple[int, str] | None = None
    for member in pool.members:
        facts = members.get(PlaceId(pool_name, member.name))
        if facts is None or not facts.is_ready or member.name in used or member.node not in alive:
            continue
        if facts.free_bytes >= byte_count and (best is None or (-facts.free_bytes, member.name) < best):
            best = (-facts.free_bytes, member.name)
    return best[1] if best else None


def members_of(spec: ReplicaSpec, pool: PoolSpec, assigned: str | None) -> tuple[MemberSpec, ...]:
    """The members that hold a replica's stripes; empty while none is chosen."""
    names: Sequence[str] = spec.members or ([assigned] if assigned else [])
    by_name = {member.name: member for member in pool.members}
    return tuple(by_name[name] for name in names if name in by_name)


def judge_region(found: RegionFound, *, table_uuid: str, digest: str, may_format: bool) -> tuple[Need, str]:
    """What a region on storage needs, and why it is no copy of the table if it is not.

    digest  of the table's other complete copies; "" where there is none
    """
    if found.state == "complete" and found.table_uuid == table_uuid:
        if digest and found.digest != digest:
            return Need.WAIT, (
                f"holds other rows than the table's other replicas: digest {found.digest[:16]}, expected "
                f"{digest[:16]}; raise `restage` to write it anew"
            )
        return Need.NOTHING, ""
    if found.state in ("absent", "staging") and found.table_uuid in ("", table_uuid):
        return Need.STAGE, ""
    if found.state == "foreign" and may_format:
        return Need.STAGE, ""
    if found.state == "foreign":
        return Need.WAIT, f"{found.message}; `format: true` at the member gives leave to write over it"
    if found.table_uuid and found.table_uuid != table_uuid:
        what = f"holds layer {found.layer_id} of another table ({found.table_uuid})"
        return Need.WAIT, f"{what}; raise `restage` to replace it"
    return Need.WAIT, found.message or f"region is {found.state}"


def judge_memory(found: MemoryNodeStatus, *, table_uuid: str, digest: str) -> tuple[Need, str]:
    """What a memory node needs, and why it does not serve the table if it does not."""
    if found.state == "absent":
        return Need.START, ""
    if found.state == "failed":
        return Need.WAIT, found.message
    if found.state == "loading":
        return Need.WAIT, ""
    if found.table_uuid != table_uuid or (digest and found.digest != digest):
        return Need.WAIT, f"serves table {found.table_uuid} with digest {found.digest[:16]}, expected {digest[:16]}"
    return Need.NOTHING, ""


def lost(status: ReplicaStatus, node: str) -> ReplicaStatus:
    return status.model_copy(update={"state": ReplicaState.LOST, "message": f"node {node!r} is gone", "task": None})
