# SPDX-License-Identifier: Apache-2.0
"""A weight update that brings a table's tensors along: are they the rows that the tier serves?

The tier's rows stay where they are, so other rows in an update would be silently ignored. They are compared instead,
all of them, and an update with other rows fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from slacktier.errors import ContractError
from slacktier_native.core import LookupCore, RowIds

_ROWS: Final = 8192  # compared at a time
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive rows of an update: [row_first, +n); columns: each [n, width], side by side as in a region's row."""

    row_first: int
    columns: tuple[torch.Tensor, ...]

    def raw(self, row_ids: RowIds) -> Bytes:
        """Bytes of these rows, [n, row bytes]."""
        wanted = torch.from_numpy(row_ids - self.row_first)
        parts = [column[wanted.to(column.device)].cpu().view(torch.uint8).numpy() for column in self.columns]
        return np.concatenate(parts, axis=1)


class Offers:
    """Tensors of one layer's table as a load hands them over, in any order; parts are named or numbered."""

    def __init__(self) -> None:
        self._parts: dict[str | int, torch.Tensor] = {}

    def add(self, part: str | int, tensor: torch.Tensor) -> None:
        self._parts[part] = tensor

    def segments(self) -> list[Segment]:
        """By row. An Engram table is one segment of weight and scale; a PLE table one per shard."""
        shards: Mapping[int, torch.Tensor] = {at: part for at, part in self._parts.items() if isinstance(at, int)}
        if shards:
            size = max(shard.shape[0] for shard in shards.values())
            return [Segment(at * size, (shard,)) for at, shard in sorted(shards.items())]
        columns = tuple(self._parts[name] for name in ("weight", "scale") if name in self._parts)
        return [Segment(0, columns)] if columns else []


def compare_table(core: LookupCore, layer_index: int, offers: Offers, *, rank: int, tp: int) -> None:
    """Raises ContractError for the first row of this rank that differs. Between steps."""
    for segment in offers.segments():
        for row_ids in _owned(segment, rank, tp):
            differs = (segment.raw(row_ids) != _rows_of(core, layer_index, row_ids)).any(axis=1)
            if differs.any():
                raise ContractError(
                    f"layer {core.layer_ids[layer_index]}: the weight update brings other bytes for row "
                    f"{row_ids[differs.argmax()]} than {core.sources(layer_index)[0].label} holds",
                    hint="stage the new table and start the server on it",
                )


def _owned(segment: Segment, rank: int, tp: int) -> Iterator[RowIds]:
    end = segment.row_first + segment.columns[0].shape[0]
    first = segment.row_first + (rank - segment.row_first) % tp
    for begin in range(first, end, _ROWS * tp):
        yield np.arange(begin, min(begin + _ROWS * tp, end), tp, dtype=np.int64)


def _rows_of(core: LookupCore, layer_index: int, row_ids: RowIds) -> Bytes:
    ids = [row_ids if index == layer_index else row_ids[:0] for index in range(len(core.layer_ids))]
    rows = np.empty((len(row_ids), core.row_bytes(layer_index)), np.uint8)
    core.begin(ids)
    try:
        core.wait(layer_index)
        core.gather(layer_index, rows)
    finally:
        core.end()
    return rows
