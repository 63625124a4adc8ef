# SPDX-License-Identifier: Apache-2.0
"""`TableBinding` (tb): the replicas and the cache split of one serving pod. Made by the operator, one per pod."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from slacktier.crd_model import (
    LAYERS_MAX,
    REPLICAS_MAX,
    Column,
    Count,
    CrdPart,
    CrdStatus,
    CustomResource,
    LayerId,
    Name,
    Namespace,
    Text,
    cel,
    ready_column,
    reason_column,
)


class PodRef(CrdPart):
    name: Annotated[str, Field(min_length=1, max_length=253)]
    uid: Annotated[str, Field(min_length=1, max_length=64)]


class PlacementRef(CrdPart):
    namespace: Namespace
    name: Name


class BindingLayer(CrdPart):
    """One layer's replicas (tierd's names) in order of preference, and its share of the row cache."""

    layer_id: LayerId
    replicas: Annotated[tuple[Text, ...], Field(min_length=1, max_length=REPLICAS_MAX)]
    tier: Text = ""
    cache_rows: Count = 0


class TableBindingSpec(CrdPart):
    """Which copies one pod reads."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.pod == oldSelf.pod", "a binding's pod cannot change"),
            ("self.placement == oldSelf.placement", "a binding's placement cannot change"),
        )
    )
    pod: PodRef
    placement: PlacementRef
    instance: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="The pod's name at tierd.")
    layers: Annotated[
        tuple[BindingLayer, ...],
        Field(
            min_length=1,
            max_length=LAYERS_MAX,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["layerId"]},
        ),
    ]


class BindingLayerStatus(CrdPart):
    """What the pod measured of one layer."""

    layer_id: LayerId
    replica: Text = ""
    tier: Text = ""
    hit_rate: float | None = None
    read_ms: float | None = None
    stall_ms: float | None = None
    window_ms: float | None = None


class TableBindingStatus(CrdStatus):
    in_force: bool = Field(default=False, description="The pod reads by this spec.")
    layers: Annotated[tuple[BindingLayerStatus, ...], Field(max_length=LAYERS_MAX)] = ()
    hit_rate: Text = ""
    tiers: Text = ""


class TableBinding(CustomResource):
    kind: ClassVar[str] = "TableBinding"
    plural: ClassVar[str] = "tablebindings"
    short: ClassVar[str] = "tb"
    spec_model: ClassVar[type[CrdPart]] = TableBindingSpec
    status_model: ClassVar[type[CrdStatus]] = TableBindingStatus
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Pod", type="string", json_path=".spec.pod.name"),
        Column(name="Placement", type="string", json_path=".spec.placement.name"),
        Column(name="Tiers", type="string", json_path=".status.tiers"),
        Column(name="Hits", type="string", json_path=".status.hitRate"),
        Column(name="In-Force", type="boolean", json_path=".status.inForce"),
        ready_column(),
        reason_column(),
    )
