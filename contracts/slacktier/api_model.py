# SPDX-License-Identifier: Apache-2.0
"""What all resources of tierd's `/v1` API share: names, bounds, and the envelope of one resource.

A resource is named by its kind and name. PUT makes it so, whether it was there or not, and the same PUT twice changes
nothing; `version` rises with every change of any resource and is what a watch goes on from.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

API_VERSION: Final = "v1"
NAME_MAX: Final = 128
TEXT_MAX: Final = 1024
PATH_MAX: Final = 4096
BYTES_MAX: Final = 1 << 60
LAYERS_MAX: Final = 256
REPLICAS_PER_LAYER_MAX: Final = 4  # what the lookup core takes
MEMBERS_MAX: Final = 4096

Name = Annotated[
    str, StringConstraints(strict=True, max_length=NAME_MAX, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")
]  # fmt: skip
Text = Annotated[str, StringConstraints(strict=True, max_length=TEXT_MAX, pattern=r"^[^\x00-\x1f\x7f]*$")]
Host = Annotated[str, StringConstraints(strict=True, max_length=255, pattern=r"^[A-Za-z0-9._:\[\]-]+$")]
Path = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=PATH_MAX, pattern=r"^/[^\x00]*$")]
Hex = Annotated[str, StringConstraints(strict=True, max_length=4096, pattern=r"^[0-9a-f]*$")]
Count = Annotated[int, Field(strict=True, ge=0, le=BYTES_MAX)]
Positive = Annotated[int, Field(strict=True, ge=1, le=BYTES_MAX)]
LayerId = Annotated[int, Field(strict=True, ge=0, lt=1 << 16)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
Number = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Part(BaseModel):
    """Base of every part: unknown keys are refused, so that a typo changes nothing, and a value never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(StrEnum):
    """The resources; the value is also the path segment: /v1/tables/NAME."""

    POOLS = "pools"
    TABLES = "tables"
    REPLICAS = "replicas"
    INSTANCES = "instances"
    BINDINGS = "bindings"
    MEASUREMENTS = "measurements"
    TASKS = "tasks"
    SEEDS = "seeds"


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(Part):
    """One thing that is so or not, with a CamelCase reason and a sentence; `since_s` is Unix time."""

    type: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    status: ConditionStatus
    reason: Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Annotated[str, StringConstraints(max_length=4096)] = ""
    since_s: Number = 0.0


Spec = TypeVar("Spec", bound=Part)
Status = TypeVar("Status", bound=Part)


class Resource(Part, Generic[Spec, Status]):
    """One resource: what is wanted, and what is so.

    version     of its last change, spec or status
    generation  how often the spec changed; a status that has seen it says so in `observed_generation`
    created_s   Unix time
    """

    kind: Kind
    name: Name
    version: Count
    generation: Count
    created_s: Number
    spec: Spec
    status: Status
