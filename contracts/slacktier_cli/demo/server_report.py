# SPDX-License-Identifier: Apache-2.0
"""What the server reports of one block, checked at the border: GET /slacktier/report as typed values."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slacktier.errors import ContractError
from slacktier.tiers import Tier


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Spread(_Part):
    """Mean and percentiles over steps, in ms; None where there was no step."""

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class LayerReport(_Part):
    """One layer over the steps of one phase; hits were cached when the step began, repeats asked for again in it."""

    layer_id: int
    tier: Tier
    window_ms: float | None
    read_ms: Spread
    stall_ms: Spread
    lookups: int = Field(ge=0)
    hits: int = Field(ge=0)
    repeats: int = Field(ge=0)
    hit_rate: float | None
    pages_per_step: float | None


class PrefillReport(_Part):
    """The prefill steps."""

    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)
    layers: tuple[LayerReport, ...]


class ServerReport(_Part):
    """Decode figures at the top level; rows are counted over both phases. Steps are [first_step, end_step)."""

    engine: str
    seconds: float
    first_step: int
    end_step: int
    rows_checked: int = Field(ge=0)
    mismatched_rows: int = Field(ge=0)
    failed_steps: int = Field(ge=0)
    steps: int = Field(ge=0)
    tokens: int = Field(ge=0)
    step_ms: Spread
    layers: tuple[LayerReport, ...]
    prefill: PrefillReport


def parse_report(answer: dict[str, Any]) -> ServerReport:
    """Typed report; raises ContractError naming the first field that is wrong."""
    try:
        return ServerReport.model_validate(answer)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ContractError(f"the server's report: {where}: {first['msg']}") from exc
