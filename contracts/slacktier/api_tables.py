# SPDX-License-Identifier: Apache-2.0
"""Tables and their replicas: where rows come from, where copies are wanted, and how far each copy is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, model_validator

from slacktier.api_model import Condition, Count, Hex, LayerId, Name, Part, Path, Port, Positive, Share, Text
from slacktier.tiers import Tier

FAMILIES = r"^(v41|qwen3\.8|raw)$"


class CheckpointSource(Part):
    """A checkpoint directory or one safetensors file, as the node that stages sees it; `tensor` only for family raw."""

    path: Path
    family: Annotated[str, Field(pattern=FAMILIES)] | None = None
    tensor: Text = ""
    payload_bytes: Count = 0
    scale_tensor: Text = ""
    scale_bytes: Count = 0


class SyntheticSource(Part):
    """No checkpoint: rows of the test pattern."""

    shape: Annotated[str, Field(pattern=r"^(v41|qwen3\.8|qwen3\.8-bf16)$")]
    rows: Positive
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] = 0


class TableSpec(Part):
    """One layer's table. What identifies it cannot be changed: another table has another name."""

    layer_id: LayerId
    checkpoint: CheckpointSource | None = None
    synthetic: SyntheticSource | None = None
    model: Text = ""
    revision: Text = ""

    @model_validator(mode="after")
    def _one_source(self) -> TableSpec:
        if (self.checkpoint is None) == (self.synthetic is None):
            raise ValueError("expected exactly one of checkpoint and synthetic")
        return self


class TableStatus(Part):
    """What the source's headers say, and the digest once a replica is complete."""

    observed_generation: Count = 0
    model: Text = ""
    table_uuid: str = ""
    rows: Count = 0
    row_bytes: Count = 0
    region_bytes: Count = 0
    digest: Hex = ""
    replicas_complete: Count = 0
    conditions: tuple[Condition, ...] = ()


class ReplicaSpec(Part):
    """A copy of a table in a pool: on one member, or striped over several in this order. No member: tierd picks one.

    restage  raise it to have the copy written anew
    """

    table: Name
    pool: Name
    members: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    restage: Annotated[int, Field(strict=True, ge=0, lt=1 << 31)] = 0


class ReplicaState(StrEnum):
    """pending -> staging -> complete; `lost` with its node, `failed` until the cause is gone or the spec changes."""

    PENDING = "pending"
    STAGING = "staging"
    COMPLETE = "complete"
    FAILED = "failed"
    LOST = "lost"
    EVICTING = "evicting"


class ReplicaStatus(Part):
    """How far a copy is and where. Addresses and keys are not here: only a bound instance is told those.

    progress  of staging and verification together
    epoch     of the region's superblock; bytes_read from the source by the last staging, shared reads counted once
    """

    observed_generation: Count = 0
    state: ReplicaState = ReplicaState.PENDING
    tier: Tier | None = None
    node: str = ""
    members: tuple[Name, ...] = ()
    progress: Share = 0.0
    staged_bytes: Count = 0
    region_bytes: Count = 0
    epoch: Count = 0
    digest: Hex = ""
    task: Name | None = None
    restarts: Count = 0
    message: Annotated[str, Field(max_length=4096)] = ""
    conditions: tuple[Condition, ...] = ()


class TaskState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class TaskSpec(Part):
    """Long work that tierd started: what, for which resource. Clients read tasks and never PUT them."""

    action: Annotated[str, Field(max_length=32)]
    replica: Name
    node: str = ""


class TaskStatus(Part):
    """phase: check, stage or verify; bytes of that phase; bytes_written to the target, superblocks and all."""

    state: TaskState = TaskState.QUEUED
    phase: str = ""
    done_bytes: Count = 0
    total_bytes: Count = 0
    bytes_read: Count = 0
    bytes_written: Count = 0
    outcome: str = ""
    started_s: float = 0.0
    ended_s: float = 0.0
    message: Annotated[str, Field(max_length=4096)] = ""


class Endpoint(Part):
    """Where a memory node serves; kept by the head, told to bound instances only."""

    host: str
    port: Port
    pid: Count = 0
