# SPDX-License-Identifier: Apache-2.0
"""Pools of places for tables: disks, files on disks, memory nodes. One pool holds places of one tier."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from slacktier.api_model import MEMBERS_MAX, Above0, Condition, Count, Host, Name, Number, Part, Path, Port, Text
from slacktier.read_model_file import ReadSpec
from slacktier.tiers import REMOTE_TIERS, Tier


class MemberSpec(Part):
    """One place in a pool.

    node      the node it is on; empty: the head's own
    path      nvme, dram, emulated: a directory for region files, or a block device that holds one region
    format    leave to write over a device or file that does not carry our superblock
    capacity_bytes  for tables; None: what is free there
    host, port  memory nodes: where rows are served; port 0 takes a free one
    hugepages   memory nodes: hold the table in reserved huge pages, and fail where there are too few
    """

    name: Name
    node: Annotated[str, Field(max_length=255)] = ""
    path: Path | None = None
    format: bool = False
    capacity_bytes: Count | None = None
    host: Host | None = None
    port: Port = 0
    hugepages: bool = False


class PoolSpec(Part):
    """Places of one tier, with what a read from one of them takes until it has been measured there."""

    tier: Tier
    members: Annotated[tuple[MemberSpec, ...], Field(min_length=1, max_length=MEMBERS_MAX)]
    read: ReadSpec | None = None
    units: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    reads_per_s: Above0 | None = None
    cost_per_gib: Number = 0.0

    @model_validator(mode="after")
    def _members_fit_the_tier(self) -> PoolSpec:
        names = [member.name for member in self.members]
        if len(set(names)) != len(names):
            raise ValueError("members: a name is given twice")
        if self.tier is Tier.EMULATED and self.read is None:
            raise ValueError("read: an emulated pool needs a read model, which is what it emulates")
        for member in self.members:
            on_storage = self.tier not in REMOTE_TIERS
            if on_storage and (member.path is None or member.host is not None or member.port or member.hugepages):
                raise ValueError(f"members: {member.name}: a member of tier {self.tier.value} has a path, no address")
            if not on_storage and (member.path is not None or member.format):
                raise ValueError(f"members: {member.name}: a memory node has neither path nor format")
        return self


class MemberStatus(Part):
    """What was found at one place.

    state     ready, missing (no such path, node gone), refused (not ours), full
    free_bytes  for further tables
    """

    name: Name
    node: str = ""
    state: str = "unknown"
    message: Text = ""
    free_bytes: Count = 0
    used_bytes: Count = 0
    backend: str = ""
    read: ReadSpec | None = None


class PoolStatus(Part):
    observed_generation: Count = 0
    members: tuple[MemberStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
