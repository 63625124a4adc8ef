# SPDX-License-Identifier: Apache-2.0
"""What all custom resources share: group, names, bounds, and rules that the API server checks.

The schemas that a cluster gets are generated from these models (operator/crds, `make generate`), so that what the
operator reads and what the API server admits cannot differ. `cel(...)` puts a rule on a model that pydantic's schema
cannot say.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

GROUP: Final = "slacktier.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

GATE: Final = f"{GROUP}/tables"  # the scheduling gate that holds a serving pod until its tables are ready
PLACEMENT_LABEL: Final = f"{GROUP}/placement"  # on serving pods: the name of their TablePlacement
PLACEMENT_NAMESPACE: Final = f"{GROUP}/placement-namespace"  # annotation, where that is in another namespace
FINALIZER: Final = f"{GROUP}/tierd"

LAYERS_MAX: Final = 64
REPLICAS_MAX: Final = 4
MEMBERS_MAX: Final = 256
PODS_MAX: Final = 512

_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?")
_UNITS: Final = {unit: 1024**power for power, unit in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi"))} | {
    unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P"))
}

Name = Annotated[
    str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")
]  # fmt: skip
Namespace = Name
Text = Annotated[str, StringConstraints(max_length=1024)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")]
AbsolutePath = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^/[^\x00]*$")]
Quantity = Annotated[
    str, StringConstraints(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$")
]  # fmt: skip
LayerId = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Ms = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Us = Annotated[float, Field(ge=0, le=60e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]


def quantity_bytes(text: str) -> int:
    """Bytes of a Kubernetes quantity (`250Gi`); raises ValueError."""
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r}: expected a quantity of bytes, as 250Gi")
    return int(float(found[1]) * _UNITS[found[2] or ""])


def bytes_quantity(count: int) -> str:
    """The other way, in the largest binary unit that loses less than a thousandth."""
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        if count >= _UNITS[unit]:
            return f"{count / _UNITS[unit]:.1f}".rstrip("0").rstrip(".") + unit
    return str(count)


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """Rules of the API server's expression language, with what it says when one is broken."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


class CrdPart(BaseModel):
    """Base of every part of a custom resource: camelCase in YAML, unknown keys refused by the operator too."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(CrdPart):
    """As metav1.Condition: one thing that is so or not, why, in a word and in a sentence."""

    type: Annotated[str, StringConstraints(max_length=316, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    status: ConditionStatus
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    message: Annotated[str, StringConstraints(max_length=32768)] = ""
    last_transition_time: Annotated[str, StringConstraints(max_length=32)]
    observed_generation: Count = 0


class CrdStatus(CrdPart):
    """Base of every status."""

    observed_generation: Count = 0
    conditions: Annotated[
        tuple[Condition, ...],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ] = ()


class Column(CrdPart):
    """One column of `kubectl get`; priority 1 only with `-o wide`."""

    name: str
    type: str
    json_path: str
    description: str = ""
    priority: int = 0


class CustomResource(BaseModel):
    """One kind: how it is called, and the models of its spec and status.

    columns  what `kubectl get` shows between NAME and AGE
    """

    kind: ClassVar[str]
    plural: ClassVar[str]
    short: ClassVar[str]
    namespaced: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]]
    spec_model: ClassVar[type[CrdPart]]
    status_model: ClassVar[type[CrdStatus]]


def ready_column() -> Column:
    return Column(name="Ready", type="string", json_path='.status.conditions[?(@.type=="Ready")].status')


def reason_column() -> Column:
    return Column(
        name="Reason", type="string", json_path='.status.conditions[?(@.type=="Ready")].reason', priority=1
    )  # fmt: skip
