# SPDX-License-Identifier: Apache-2.0
"""Serving instances, what they are bound to, and what they report.

An instance says what it needs (`instances`). Who decides (tierd without a cluster, the operator in one) writes a
`bindings` resource of the same name. The instance reads its `Access`, which tells addresses and keys, and reports.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from slacktier.api_model import (
    LAYERS_MAX,
    REPLICAS_PER_LAYER_MAX,
    Above0,
    Condition,
    Count,
    Hex,
    Host,
    LayerId,
    Name,
    Number,
    Part,
    Path,
    Port,
    Share,
    Text,
)
from slacktier.delay import DelayModel
from slacktier.read_model_file import ReadSpec
from slacktier.tiers import Tier


class CurvePoint(Part):
    """Pages that one rank reads in a step with this many cache rows."""

    cache_rows: Count
    pages: Number


class LayerNeed(Part):
    """One lookup layer of an instance: its table, its window, and its miss curve from 0 cache rows on."""

    layer_id: LayerId
    table: Name
    window_ms: Number
    misses: Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=256)]
    tiers: Annotated[frozenset[Tier], Field(max_length=5)] = frozenset()


def _check_layers(layer_ids: list[int]) -> None:
    if len(set(layer_ids)) != len(layer_ids):
        raise ValueError("layers: a layer is named twice")


class InstanceSpec(Part):
    """What a serving instance needs; the terms are those of the window rule.

    node     where it runs; empty: the head's own node. Disks serve only instances on their node
    cache_rows  rows of one rank's row cache, all layers together
    ttl_s    an instance that is silent for so long is given up and its binding taken away; 0: never
    """

    node: Annotated[str, Field(max_length=255)] = ""
    model: Text = ""
    engine: Text = ""
    step_ms: Above0
    ranks: Annotated[int, Field(strict=True, ge=1, le=1024)] = 1
    s_ms: Number = 0.0
    kappa_ms: Number = 0.0
    slo_pct: Number = 1.0
    cache_rows: Count = 0
    ttl_s: Number = 0.0
    layers: Annotated[tuple[LayerNeed, ...], Field(min_length=1, max_length=LAYERS_MAX)]

    @model_validator(mode="after")
    def _layers_once(self) -> InstanceSpec:
        _check_layers([layer.layer_id for layer in self.layers])
        return self


class LayerFigures(Part):
    """What an instance measured of one layer since its last report; decode only."""

    layer_id: LayerId
    tier: Tier | None = None
    lookups: Count = 0
    hits: Count = 0
    repeats: Count = 0
    misses: Count = 0
    pages: Count = 0
    retries: Count = 0
    window_us: Number = 0.0
    read_us_mean: Number = 0.0
    read_us_p99: Number = 0.0
    stall_us_mean: Number = 0.0
    stall_us_p99: Number = 0.0


class Report(Part):
    """What an instance tells about an interval: which access version is in force, and how it went.

    in_force  version of the Access that the engine reads by; 0: none yet
    """

    in_force: Count
    ready: bool
    seconds: Number
    steps: Count = 0
    step_ms_mean: Number = 0.0
    step_ms_p99: Number = 0.0
    failed_steps: Count = 0
    message: Annotated[str, Field(max_length=4096)] = ""
    layers: Annotated[tuple[LayerFigures, ...], Field(max_length=LAYERS_MAX)] = ()

    @model_validator(mode="after")
    def _layers_once(self) -> Report:
        _check_layers([layer.layer_id for layer in self.layers])
        return self


class InstanceStatus(Part):
    observed_generation: Count = 0
    seen_s: float = 0.0
    report: Report | None = None
    conditions: tuple[Condition, ...] = ()


class LayerBinding(Part):
    """One layer's replicas in order of preference, and its share of the row cache, in rows of one rank."""

    layer_id: LayerId
    replicas: Annotated[tuple[Name, ...], Field(min_length=1, max_length=REPLICAS_PER_LAYER_MAX)]
    cache_rows: Count = 0


class BindingSpec(Part):
    """Which replica serves each layer of the instance of the same name. Written by whoever decides.

    decided_by  who wrote it
    slo_pct     the slowdown that sharing may not push this instance past
    """

    decided_by: Literal["tierd", "operator"] = "operator"
    slo_pct: Number = 1.0
    layers: Annotated[tuple[LayerBinding, ...], Field(min_length=1, max_length=LAYERS_MAX)]

    @model_validator(mode="after")
    def _layers_once(self) -> BindingSpec:
        _check_layers([layer.layer_id for layer in self.layers])
        return self


class LayerInForce(Part):
    """A layer of a binding as it is: what the rule predicts and what the instance measured."""

    layer_id: LayerId
    replica: Name
    tier: Tier
    window_ms: Number = 0.0
    read_ms: Number = 0.0
    stall_ms: Number = 0.0
    margin_ms: float = 0.0
    hit_rate: Share | None = None
    measured_read_ms: Number | None = None
    measured_stall_ms: Number | None = None
    sentence: Annotated[str, Field(max_length=4096)] = ""


class BindingStatus(Part):
    """in_force_version: the Access version that the instance has reported to be reading by."""

    observed_generation: Count = 0
    access_version: Count = 0
    in_force_version: Count = 0
    slowdown_pct: float = 0.0
    layers: tuple[LayerInForce, ...] = ()
    conditions: tuple[Condition, ...] = ()


class AccessDelay(Part):
    """The delay model of an emulated device."""

    a_us: Number
    b_us: Number = 0.0
    c_us: Number = 0.0

    def delay(self) -> DelayModel:
        return DelayModel(f"{self.a_us:g}/{self.b_us:g}/{self.c_us:g}", self.a_us, self.b_us, self.c_us)


class ReplicaAccess(Part):
    """How a bound instance reads one replica. Which fields are set follows from the tier.

    nvme, dram, emulated  paths of the stripes; emulated also device and delay
    tcp, rdma             host, port and token (as text): the row server's; rdma: the server tells address and remote
                          key only after that token has been proved
    table_uuid, digest, epoch  what the region must be; another one is refused
    """

    replica: Name
    tier: Tier
    table_uuid: str
    digest: Hex
    epoch: Count
    rows: Count
    paths: Annotated[tuple[Path, ...], Field(max_length=64)] = ()
    device: Annotated[str, Field(max_length=64)] = ""
    delay: AccessDelay | None = None
    host: Host | None = None
    port: Port = 0
    token: Hex = Field(default="", repr=False)


class LayerAccess(Part):
    layer_id: LayerId
    table: Name
    cache_rows: Count
    replicas: Annotated[tuple[ReplicaAccess, ...], Field(max_length=REPLICAS_PER_LAYER_MAX)]


class Access(Part):
    """All that an instance needs to read its rows; answered to that instance alone.

    version  rises whenever anything in here changes; what a watch and a report name
    bound    False: there is no binding, or no replica of some layer can be read now; `message` says why
    """

    instance: Name
    version: Count
    bound: bool
    message: Annotated[str, Field(max_length=4096)] = ""
    layers: Annotated[tuple[LayerAccess, ...], Field(max_length=LAYERS_MAX)] = ()


class MeasurementSpec(Part):
    """A read model fitted under load at one member of a pool; what decisions use from then on."""

    pool: Name
    member: Name
    read: ReadSpec
    r2: Annotated[float, Field(le=1, ge=-1e9, allow_inf_nan=False)] = 1.0
    samples: Count = 0
    machine: Text = ""


class MeasurementStatus(Part):
    """drift: measured against predicted read time of the instances' last reports; 1 where they agree."""

    observed_generation: Count = 0
    measured_s: float = 0.0
    drift: Number | None = None
