# SPDX-License-Identifier: Apache-2.0
"""`TierPool` (tp): a class of places for tables: disks, files on disks, memory nodes. One pool holds one tier."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from slacktier.crd_model import (
    MEMBERS_MAX,
    AbsolutePath,
    Column,
    CrdPart,
    CrdStatus,
    CustomResource,
    Name,
    NodeName,
    Quantity,
    Text,
    Us,
    cel,
    ready_column,
    reason_column,
)
from slacktier.tiers import Tier


class ReadModelSpec(CrdPart):
    """Read time in microseconds: a + b per own and earlier page + c per later page, one step of one rank."""

    a_us: Us
    b_us: Us = 0.0
    c_us: Us = 0.0
    ranks_per_unit: Annotated[float, Field(gt=0, le=1024)] = Field(
        default=1.0, description="Ranks that shared one disk or NIC when it was measured."
    )


class MemberSpec(CrdPart):
    """One place: a directory or block device of a node, or a node's memory."""

    name: Name
    node: NodeName
    path: AbsolutePath | None = Field(
        default=None, description="Tiers nvme, dram and emulated: a directory for region files, or a block device."
    )
    format: bool = Field(
        default=False, description="Write to this device although it does not carry SlackTier's superblock."
    )
    capacity: Quantity | None = Field(default=None, description="For tables; what is free there unless given.")
    hugepages: bool = Field(default=False, description="Memory nodes: hold tables in reserved huge pages.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=0, description="Memory nodes; 0 takes a free one.")


class NodeTemplate(CrdPart):
    """One member for every node with these labels, all alike; its name is the node's."""

    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(min_length=1, max_length=16)]
    path: AbsolutePath | None = None
    capacity: Quantity | None = None
    hugepages: bool = False


_NEEDS_PATH = "self.tier in ['rdma', 'tcp']"


class TierPoolSpec(CrdPart):
    """Places of one tier."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.tier == oldSelf.tier", "a pool's tier cannot change: make a new pool and move the placements to it"),
            ("has(self.members) != has(self.nodes)", "give either members or nodes"),
            (
                f"!has(self.members) || ({_NEEDS_PATH}) || self.members.all(m, has(m.path))",
                "members of tiers nvme, dram and emulated need a path",
            ),
            (
                f"!has(self.members) || !({_NEEDS_PATH}) || self.members.all(m, !has(m.path))",
                "memory nodes (tiers rdma and tcp) have no path",
            ),
            (
                f"!has(self.nodes) || ({_NEEDS_PATH}) == !has(self.nodes.path)",
                "nodes: a path for tiers nvme, dram and emulated, and none for memory nodes",
            ),
            (
                "self.tier != 'emulated' || has(self.read)",
                "an emulated pool needs a read model: it is what it emulates",
            ),
        )
    )
    tier: Tier
    members: (
        Annotated[
            tuple[MemberSpec, ...],
            Field(
                min_length=1,
                max_length=MEMBERS_MAX,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
            ),
        ]
        | None
    ) = None
    nodes: NodeTemplate | None = None
    read: ReadModelSpec | None = Field(
        default=None, description="Used until tierd has measured its own; an emulated pool's is what it emulates."
    )
    units: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="Equal disks or NICs per member that its ranks spread over."
    )
    reads_per_second: Annotated[float, Field(gt=0, le=1e12)] | None = None
    cost_per_gib: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=0.0, description="In any currency; only ratios between pools matter."
    )


class MemberStatus(CrdPart):
    name: Text
    node: Text = ""
    state: Text = ""
    free: Text = ""
    message: Text = ""


class TierPoolStatus(CrdStatus):
    """read: the measured model, or the spec's until there is one; measured says which."""

    members: Annotated[tuple[MemberStatus, ...], Field(max_length=MEMBERS_MAX)] = ()
    ready_members: Text = Field(default="", description="As 2/3.")
    free: Text = ""
    read: ReadModelSpec | None = None
    measured: bool = False


class TierPool(CustomResource):
    kind: ClassVar[str] = "TierPool"
    plural: ClassVar[str] = "tierpools"
    short: ClassVar[str] = "tp"
    namespaced: ClassVar[bool] = False
    spec_model: ClassVar[type[CrdPart]] = TierPoolSpec
    status_model: ClassVar[type[CrdStatus]] = TierPoolStatus
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Tier", type="string", json_path=".spec.tier"),
        Column(name="Members", type="string", json_path=".status.readyMembers"),
        Column(name="Free", type="string", json_path=".status.free"),
        Column(name="Read-a-us", type="number", json_path=".status.read.aUs", priority=1),
        Column(name="Read-b-us", type="number", json_path=".status.read.bUs", priority=1),
        ready_column(),
        reason_column(),
    )
