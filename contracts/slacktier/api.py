# SPDX-License-Identifier: Apache-2.0
"""tierd's `/v1` API: the models that its clients and the head agree on. How the calls behave: docs/api.md.

By subject: api_model (names, bounds, envelope), api_pools, api_tables, api_bindings, api_seeds, api_lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from slacktier.api_bindings import (
    Access,
    AccessDelay,
    BindingSpec,
    BindingStatus,
    CurvePoint,
    InstanceSpec,
    InstanceStatus,
    LayerAccess,
    LayerBinding,
    LayerFigures,
    LayerInForce,
    LayerNeed,
    MeasurementSpec,
    MeasurementStatus,
    ReplicaAccess,
    Report,
)
from slacktier.api_lists import (
    BODY_BYTES_MAX,
    PAGE_LIMIT_MAX,
    WAIT_S_MAX,
    ApiError,
    Change,
    ChangeType,
    ErrorBody,
    ErrorCode,
    Listing,
)
from slacktier.api_model import Condition, ConditionStatus, Kind, Name, Part, Resource
from slacktier.api_pools import MemberSpec, MemberStatus, PoolSpec, PoolStatus
from slacktier.api_seeds import SeedAccess, SeedPublic, SeedSpec, SeedStatus
from slacktier.api_tables import (
    CheckpointSource,
    Endpoint,
    ReplicaSpec,
    ReplicaState,
    ReplicaStatus,
    SyntheticSource,
    TableSpec,
    TableStatus,
    TaskSpec,
    TaskState,
    TaskStatus,
)

__all__ = [
    "BODY_BYTES_MAX",
    "KINDS",
    "PAGE_LIMIT_MAX",
    "WAIT_S_MAX",
    "Access",
    "AccessDelay",
    "ApiError",
    "Binding",
    "BindingSpec",
    "BindingStatus",
    "Change",
    "ChangeType",
    "CheckpointSource",
    "Condition",
    "ConditionStatus",
    "CurvePoint",
    "Endpoint",
    "ErrorBody",
    "ErrorCode",
    "Instance",
    "InstanceSpec",
    "InstanceStatus",
    "Kind",
    "KindModels",
    "LayerAccess",
    "LayerBinding",
    "LayerFigures",
    "LayerInForce",
    "LayerNeed",
    "Listing",
    "Measurement",
    "MeasurementSpec",
    "MeasurementStatus",
    "MemberSpec",
    "MemberStatus",
    "Name",
    "Part",
    "Pool",
    "PoolSpec",
    "PoolStatus",
    "Replica",
    "ReplicaAccess",
    "ReplicaSpec",
    "ReplicaState",
    "ReplicaStatus",
    "Report",
    "Resource",
    "Seed",
    "SeedAccess",
    "SeedPublic",
    "SeedSpec",
    "SeedStatus",
    "SyntheticSource",
    "Table",
    "TableSpec",
    "TableStatus",
    "Task",
    "TaskSpec",
    "TaskState",
    "TaskStatus",
]


class Pool(Resource[PoolSpec, PoolStatus]):
    """A pool of places for tables."""


class Table(Resource[TableSpec, TableStatus]):
    """One layer's table."""


class Replica(Resource[ReplicaSpec, ReplicaStatus]):
    """A copy of a table."""


class Instance(Resource[InstanceSpec, InstanceStatus]):
    """A serving instance."""


class Binding(Resource[BindingSpec, BindingStatus]):
    """An instance's replicas."""


class Measurement(Resource[MeasurementSpec, MeasurementStatus]):
    """A place's read model."""


class Task(Resource[TaskSpec, TaskStatus]):
    """Long work."""


class Seed(Resource[SeedPublic, SeedStatus]):
    """A prefill instance's seed server, as others see it."""


@dataclass(frozen=True, slots=True)
class KindModels:
    """The models of one kind; `spec` is the body of its PUT, `resource` what a GET answers."""

    spec: type[Part]
    status: type[Part]
    resource: type[Resource[Any, Any]]


KINDS: Final[dict[Kind, KindModels]] = {
    Kind.POOLS: KindModels(PoolSpec, PoolStatus, Pool),
    Kind.TABLES: KindModels(TableSpec, TableStatus, Table),
    Kind.REPLICAS: KindModels(ReplicaSpec, ReplicaStatus, Replica),
    Kind.INSTANCES: KindModels(InstanceSpec, InstanceStatus, Instance),
    Kind.BINDINGS: KindModels(BindingSpec, BindingStatus, Binding),
    Kind.MEASUREMENTS: KindModels(MeasurementSpec, MeasurementStatus, Measurement),
    Kind.TASKS: KindModels(TaskSpec, TaskStatus, Task),
    Kind.SEEDS: KindModels(SeedSpec, SeedStatus, Seed),
}
