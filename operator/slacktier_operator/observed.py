# SPDX-License-Identifier: Apache-2.0
"""What the operator sees of one placement and all around it: the input of the decision, without clients or clocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slacktier.api import LayerFigures, ReplicaState
from slacktier.crd_placement import LayerDecision, TablePlacementSpec
from slacktier.tiers import Tier
from slacktier.window_model import ReadModel
from slacktier_operator.names import Key

LOCAL_TIERS = frozenset({Tier.NVME, Tier.DRAM, Tier.EMULATED})  # read only by pods on the same node


@dataclass(frozen=True, slots=True)
class TableView:
    """One layer's table as its source's headers describe it."""

    table: str
    rows: int
    row_bytes: int
    region_bytes: int


@dataclass(frozen=True, slots=True)
class MemberView:
    name: str
    node: str
    ready: bool
    free_bytes: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool with its read model: measured where `measured`."""

    name: str
    tier: Tier
    members: tuple[MemberView, ...]
    read: ReadModel | None
    measured: bool = False
    units: int = 1
    reads_per_s: float | None = None
    cost_per_gib: float = 0.0

    @property
    def local(self) -> bool:
        return self.tier in LOCAL_TIERS


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A copy that exists at tierd for this placement."""

    name: str
    layer_id: int
    pool: str
    member: str
    node: str
    state: ReplicaState
    progress: float
    message: str = ""

    @property
    def complete(self) -> bool:
        return self.state is ReplicaState.COMPLETE

    @property
    def broken(self) -> bool:
        """It will not become complete by itself: its node is gone, or staging failed."""
        return self.state in (ReplicaState.LOST, ReplicaState.FAILED)


@dataclass(frozen=True, slots=True)
class ReportView:
    """What an instance last reported: per layer, over `steps` decode steps."""

    ready: bool
    in_force: int
    steps: int
    step_ms: float
    layers: Mapping[int, LayerFigures]


@dataclass(frozen=True, slots=True)
class PodView:
    """A serving pod of this placement, its binding's layers as they are at tierd, and its last report."""

    key: Key
    uid: str
    gated: bool
    node: str = ""
    nodes_allowed: frozenset[str] | None = None  # by its own selector and affinity; None: any
    ready: bool = False
    bound: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    bound_rows: Mapping[int, int] = field(default_factory=dict)
    access_version: int = 0
    report: ReportView | None = None

    @property
    def moved_on(self) -> bool:
        """Does the instance read by the binding that tierd has?"""
        return bool(self.bound) and self.report is not None and self.report.in_force >= self.access_version > 0


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that the decision for one placement looks at.

    in_force    the layers that serve now, () before the first plan is applied; changed_s: when they last changed
    now_s       Unix time of this look
    """

    key: Key
    spec: TablePlacementSpec
    tables: Mapping[int, TableView]
    pools: tuple[PoolView, ...]
    replicas: tuple[ReplicaView, ...]
    pods: tuple[PodView, ...]
    in_force: tuple[LayerDecision, ...]
    changed_s: float
    now_s: float
