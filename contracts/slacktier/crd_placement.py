# SPDX-License-Identifier: Apache-2.0
"""`TablePlacement` (tpl): which layer's table lives where, for which serving pods, and why."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from slacktier.crd_model import (
    LAYERS_MAX,
    PODS_MAX,
    REPLICAS_MAX,
    Column,
    Count,
    CrdPart,
    CrdStatus,
    CustomResource,
    LayerId,
    Ms,
    Name,
    Namespace,
    Percent,
    Share,
    Text,
    cel,
    ready_column,
    reason_column,
)

CURVE_POINTS_MAX = 64


class TierChoice(StrEnum):
    """Where a layer may live; Auto leaves it to the window rule."""

    AUTO = "Auto"
    DRAM = "dram"
    NVME = "nvme"
    RDMA = "rdma"
    TCP = "tcp"
    EMULATED = "emulated"


class Approval(StrEnum):
    """Whether a plan is applied as it is made, or only once spec.approvedPlan names it."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class CurvePoint(CrdPart):
    """Pages that one rank reads in a step with this many cache rows."""

    cache_rows: Count
    pages: Annotated[float, Field(ge=0, le=1e9)]


class PlacementLayer(CrdPart):
    """One lookup layer: its window and miss curve, until serving pods report their own."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.misses[0].cacheRows == 0", "misses: the first point is at 0 cache rows"),
            (
                "self.misses.all(a, self.misses.all(b, a.cacheRows >= b.cacheRows || a.pages >= b.pages))",
                "misses: more cache rows never read more pages",
            ),
        )
    )
    layer_id: LayerId
    window_ms: Ms = Field(description="Compute time before the layer needs its rows; 0 at the input embedding.")
    misses: Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=CURVE_POINTS_MAX)] = Field(
        description="From `slacktier characterize --json`; the first point is at 0 cache rows."
    )
    tier: TierChoice = TierChoice.AUTO
    cache_share: Share | None = Field(
        default=None, description="Of cacheRowsPerRank; left to the window rule unless given."
    )


class Sharing(CrdPart):
    """Whose pods may read these copies."""

    max_instances: Annotated[int, Field(ge=1, le=PODS_MAX)] = Field(
        default=PODS_MAX, description="Pods at most; the window rule may allow fewer."
    )
    namespaces: Annotated[
        tuple[Namespace, ...], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = Field(default=(), description="Other namespaces whose pods may name this placement.")


class TablePlacementSpec(CrdPart):
    """What is wanted: the table, where its layers may live, how much slower a step may get."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.table == oldSelf.table", "a placement's table cannot change: make a new placement"),
            (
                "self.layers.all(a, self.layers.exists_one(b, a.layerId == b.layerId))",
                "layers: a layer is named twice",
            ),
            (
                "self.layers.map(x, has(x.cacheShare) ? x.cacheShare : 0.0).sum() <= 1.0",
                "layers: the cache shares add up to more than 1",
            ),
            ("self.layers.all(x, x.windowMs <= self.stepMs)", "layers: a window is longer than the step"),
        )
    )
    table: Name = Field(description="A LookupTable in this namespace.")
    layers: Annotated[
        tuple[PlacementLayer, ...],
        Field(
            min_length=1,
            max_length=LAYERS_MAX,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["layerId"]},
        ),
    ]
    pools: Annotated[tuple[Name, ...], Field(max_length=16)] = Field(
        default=(), description="TierPools that may be used; all unless given."
    )
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = Field(
        default=1, description="Copies of each layer's table on different members; the others stand in for a lost one."
    )
    step_ms: Annotated[float, Field(gt=0, le=1e6)] = Field(
        description="A decode step with all tables in host memory, at the load to plan for."
    )
    ranks: Annotated[int, Field(ge=1, le=64)] = Field(default=1, description="Tensor-parallel ranks of a serving pod.")
    slo_percent: Percent = Field(default=1.0, description="How much slower than that a step may get.")
    cache_rows_per_rank: Count = Field(default=0, description="Rows of a rank's GPU cache, all layers together.")
    sharing: Sharing = Field(default_factory=Sharing)
    stabilization_window_seconds: Annotated[int, Field(ge=0, le=86400)] = Field(
        default=300, description="A placement that serves is changed at most once in this time."
    )
    approval: Approval = Approval.AUTOMATIC
    approved_plan: Text = Field(default="", description="The id of status.plan to apply, with approval Manual.")
    suspend: bool = Field(default=False, description="Leave all as it is: stage, move and bind nothing.")


class LayerDecision(CrdPart):
    """Where one layer lives and why, by the window rule."""

    layer_id: LayerId
    tier: Text
    pool: Text
    replicas: Annotated[tuple[Text, ...], Field(max_length=REPLICAS_MAX)] = ()
    window_ms: float
    read_ms: float
    margin_ms: float
    stall_ms: float
    cache_rows: Count
    reason: Annotated[str, Field(max_length=4096)]


class Plan(CrdPart):
    """One answer of the window rule; `id` names it for spec.approvedPlan."""

    id: Text
    layers: Annotated[tuple[LayerDecision, ...], Field(max_length=LAYERS_MAX)]
    slowdown_ms: float
    slowdown_percent: float
    instances: Count
    made_at: Text


class BoundPod(CrdPart):
    namespace: Text
    name: Text
    node: Text = ""
    binding: Text
    ready: bool = False


class TablePlacementStatus(CrdStatus):
    """layers is what is in force; plan is shown while it is not (approval Manual, stabilization, staging)."""

    layers: Annotated[tuple[LayerDecision, ...], Field(max_length=LAYERS_MAX)] = ()
    plan: Plan | None = None
    slowdown_ms: float | None = None
    slowdown_percent: float | None = None
    staged_percent: Annotated[int, Field(ge=0, le=100)] = 0
    bound_pods: Annotated[tuple[BoundPod, ...], Field(max_length=PODS_MAX)] = ()
    pods: Count = 0
    model: Text = ""
    tiers: Text = Field(default="", description="As L1=rdma,L14=nvme.")
    cache: Text = Field(default="", description="Cache rows of a rank by layer, as L1=750k,L14=250k.")
    slowdown: Text = ""
    changed_at: Text = Field(default="", description="When what is in force last changed.")


class TablePlacement(CustomResource):
    kind: ClassVar[str] = "TablePlacement"
    plural: ClassVar[str] = "tableplacements"
    short: ClassVar[str] = "tpl"
    spec_model: ClassVar[type[CrdPart]] = TablePlacementSpec
    status_model: ClassVar[type[CrdStatus]] = TablePlacementStatus
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Model", type="string", json_path=".status.model"),
        Column(name="Tiers", type="string", json_path=".status.tiers"),
        Column(name="Cache", type="string", json_path=".status.cache"),
        Column(name="Staged", type="integer", json_path=".status.stagedPercent"),
        Column(name="Slowdown", type="string", json_path=".status.slowdown"),
        Column(name="Pods", type="integer", json_path=".status.pods", priority=1),
        ready_column(),
        reason_column(),
    )
