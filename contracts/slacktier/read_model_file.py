# SPDX-License-Identifier: Apache-2.0
"""A fitted read model as a file: what `slacktier measure reads` writes, and `slacktier plan` and the operator read."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from slacktier.tiers import Tier
from slacktier.window_model import ReadModel

Number = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Positive = Annotated[float, Field(strict=True, allow_inf_nan=False, gt=0)]
Count = Annotated[int, Field(strict=True, ge=1)]


class ReadSpec(BaseModel):
    """T = a + b * own and earlier pages + c * later pages, in microseconds, as ReadModel has it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    a_us: Number
    b_us: Number = 0.0
    c_us: Number = 0.0
    ranks_per_unit: Positive = 1.0
    pages_min: Number = 0.0
    pages_max: Number = 0.0
    rmse_us: Number = 0.0

    def read_model(self) -> ReadModel:
        return ReadModel(**self.model_dump())

    @classmethod
    def of(cls, model: ReadModel) -> ReadSpec:
        return cls(**{name: getattr(model, name) for name in cls.model_fields})


class ReadModelFile(BaseModel):
    """The whole file: the model, what was measured, and how well it fits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tier: Tier
    target: str
    backend: str = ""
    read: ReadSpec
    r2: Annotated[float, Field(strict=True, allow_inf_nan=False, le=1)]
    samples: Count
    machine: str = ""
