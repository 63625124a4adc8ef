# SPDX-License-Identifier: Apache-2.0
"""`LookupTable` (lt): a model's lookup tables, and where their rows come from."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from slacktier.crd_model import (
    LAYERS_MAX,
    AbsolutePath,
    Column,
    Count,
    CrdPart,
    CrdStatus,
    CustomResource,
    LayerId,
    Name,
    Text,
    cel,
    ready_column,
    reason_column,
)


class TableFamily(StrEnum):
    """How an engine family stores and hashes its tables."""

    V41 = "v41"
    QWEN38 = "qwen3.8"


class ClaimSource(CrdPart):
    """A checkpoint on a PersistentVolumeClaim that tierd's staging pods mount (`tierd.sources` of the chart)."""

    claim_name: Name
    path: Annotated[str, Field(max_length=1024, pattern=r"^[^/\x00][^\x00]*$")] | None = Field(
        default=None, description="Below the volume's root; the root itself unless given."
    )


class SyntheticSource(CrdPart):
    """Rows of the test pattern instead of a checkpoint, to try a placement without a model."""

    rows: Annotated[int, Field(ge=1, le=1 << 40)] = Field(description="Rows of each layer.")
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0


class TableSource(CrdPart):
    """Where the rows come from: exactly one of the three."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "[has(self.path), has(self.persistentVolumeClaim), has(self.synthetic)].filter(x, x).size() == 1",
                "source: give exactly one of path, persistentVolumeClaim and synthetic",
            )
        )
    )
    path: AbsolutePath | None = Field(
        default=None, description="A checkpoint directory as the nodes that stage see it."
    )
    persistent_volume_claim: ClaimSource | None = None
    synthetic: SyntheticSource | None = None


class LookupTableSpec(CrdPart):
    """What the tables are. None of it can change: other rows are another LookupTable."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self == oldSelf", "a LookupTable cannot change: other rows are another table, so make a new one")
        )
    )
    source: TableSource
    family: TableFamily
    model: Text = Field(default="", description="The model's name, for people.")
    revision: Text = ""
    layers: Annotated[
        tuple[LayerId, ...],
        Field(min_length=1, max_length=LAYERS_MAX, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = Field(description="Layer ids whose tables are wanted.")


class TableLayerStatus(CrdPart):
    """One layer's table: what the source's header says, and the digest once a copy is complete."""

    layer_id: LayerId
    table: Text = Field(default="", description="tierd's name for it.")
    rows: Count = 0
    row_bytes: Count = 0
    region_bytes: Count = 0
    digest: Text = ""


class LookupTableStatus(CrdStatus):
    rows: Count = 0
    size: Text = Field(default="", description="Bytes of all layers once staged, with checksums.")
    digest: Text = Field(default="", description="Of the first layer; all are under layers.")
    layers: Annotated[tuple[TableLayerStatus, ...], Field(max_length=LAYERS_MAX)] = ()


class LookupTable(CustomResource):
    kind: ClassVar[str] = "LookupTable"
    plural: ClassVar[str] = "lookuptables"
    short: ClassVar[str] = "lt"
    spec_model: ClassVar[type[CrdPart]] = LookupTableSpec
    status_model: ClassVar[type[CrdStatus]] = LookupTableStatus
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="Model", type="string", json_path=".spec.model"),
        Column(name="Family", type="string", json_path=".spec.family"),
        Column(name="Rows", type="integer", json_path=".status.rows"),
        Column(name="Size", type="string", json_path=".status.size"),
        ready_column(),
        reason_column(),
    )
