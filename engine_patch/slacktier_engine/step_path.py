# SPDX-License-Identifier: Apache-2.0
"""The seam between the engine's hooks and what serves a step: the CPU's path, or a GPU's that a graph may capture.

A step:  issue(row ids of all layers) -> per layer join() -> the rows. cpu_step.py and cuda_step.py implement it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from slacktier.page import RowFormat
from slacktier_native.core import LayerResult, LookupCore

# (payload [n, P] uint8, scales [n, S] uint8) -> rows [n, dim] bf16: SGLang's own arithmetic on gathered rows.
Dequantize = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Phase(StrEnum):
    """Of a step, as metrics tell them apart."""

    DECODE = "decode"
    PREFILL = "prefill"


@dataclass(frozen=True, slots=True)
class TableShape:
    """One lookup layer as the model has it.

    dim      values per row; row_format: how the engine's own table would store them
    columns  row ids per token
    """

    layer_id: int
    row_count: int
    dim: int
    row_format: RowFormat
    columns: int


class StepPath(Protocol):
    """Lookups of one rank. Steps follow each other; one thread (on a GPU: one stream) drives a path.

    issue  never blocks on a read; captured or eager. live: 0 where a token is graph padding, which costs no read
    join   rows of one layer, in the order of its ids, into out [T * C, dim] bf16; zeros where the id is padding or
           another rank's. Raises TierError or ContractError where no replica delivered (a GPU's path: check() does)
    """

    def issue(self, row_ids: torch.Tensor, live: torch.Tensor | None = None, phase: Phase = Phase.DECODE) -> None:
        """row_ids [T, L, C] int64, live [T] or None."""

    def join(self, layer_index: int, out: torch.Tensor) -> None: ...

    def arm(self) -> None:
        """Before a replay of a captured step."""

    def check(self) -> None:
        """Raise what a step failed with since the last check: before its tokens are used."""

    def between_steps(self) -> AbstractContextManager[LookupCore]:
        """The core while no step is open, to change its sources or drop its cache."""

    def set_cache_rows(self, layer_index: int, rows: int) -> None: ...

    def close(self) -> None: ...


class StepObserver(Protocol):
    """Hears of each layer's lookup of a step; on the path of a step, so it counts and no more."""

    def layer_done(self, layer_id: int, phase: Phase, result: LayerResult) -> None: ...


def out_rows(row_ids: torch.Tensor, layer_index: int, dim: int) -> torch.Tensor:
    """Uninitialized rows for one layer's ids of a step: [T * C, dim] bf16 on the ids' device."""
    count = row_ids.shape[0] * row_ids.shape[2]
    return torch.empty((count, dim), dtype=torch.bfloat16, device=row_ids.device)


def view_rows(raw: Any, payload_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(payload, scales) of gathered rows [n, row_bytes] uint8."""
    rows = torch.from_numpy(raw)
    return rows[:, :payload_bytes], rows[:, payload_bytes:]
