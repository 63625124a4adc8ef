# SPDX-License-Identifier: Apache-2.0
"""The layers that one step path serves together, and what happens to a step's ids and rows around it.

A step:  issue (skip what lossy skipping leaves out, start the reads) -> per layer join (wait, gather, check a sample).
Neighbours: runtime.py makes one group for all Engram layers, and one per PLE layer; step_path.py does the lookups.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slacktier.errors import ContractError, SlackTierError
from slacktier_engine.checker import Checker
from slacktier_engine.counters import Counts
from slacktier_engine.step_path import Phase, StepPath, TableShape
from slacktier_native.core import LookupCore


class SeenRows:
    """A layer's seen-set on the device that row ids are on."""

    def __init__(self, bitmap: torch.Tensor) -> None:
        self._bitmap = bitmap

    def keep(self, row_ids: torch.Tensor) -> torch.Tensor:
        """row_ids with -1, which costs no read and comes back as zeros, where the row is not in the set."""
        seen = (self._bitmap[row_ids >> 3] >> (row_ids & 7)) & 1
        return torch.where(seen == 1, row_ids, -1)


class LookupGroup:
    """One thread drives it, as it drives the path.

    error  what the open step failed with; its rows are zeros then, and whoever asked must not use them
    """

    def __init__(
        self, path: StepPath, core: LookupCore, tables: Sequence[TableShape], counts: Counts, checker: Checker
    ) -> None:
        self.path = path
        self.core = core
        self.tables = tuple(tables)
        self.counts = counts
        self.checker = checker
        self.seen: dict[int, SeenRows] = {}
        self.error: SlackTierError | None = None
        self._issued: torch.Tensor | None = None
        self._asked: torch.Tensor | None = None

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(table.layer_id for table in self.tables)

    def issue(self, row_ids: torch.Tensor, live: torch.Tensor | None, phase: Phase) -> None:
        """row_ids [T, L, C] int64 of all layers of the group; live [T]: 0 where a token is padding."""
        self.error = None
        self._issued = row_ids
        self._asked = self._skip(row_ids) if self.seen else row_ids
        self.path.issue(self._asked, live, phase)

    def _skip(self, row_ids: torch.Tensor) -> torch.Tensor:
        asked = row_ids.clone()
        for index, table in enumerate(self.tables):
            if (seen := self.seen.get(table.layer_id)) is not None:
                asked[:, index] = seen.keep(row_ids[:, index])
                if not asked.is_cuda:  # a captured step cannot be counted
                    self.counts.layers[table.layer_id].skipped += int((asked[:, index] < 0).sum())
        return asked

    def join(self, layer_index: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Rows of a layer into out [T * C, dim] bf16. indices [T, C]: what the engine asks for, to be sure.

        raises  ContractError for ids that were not issued; what the read failed with
        """
        table = self.tables[layer_index]
        if self._issued is None or self._asked is None or not same_ids(indices, self._issued[:, layer_index]):
            raise ContractError(
                f"layer {table.layer_id}: the engine asks for rows {tuple(indices.shape)} that its hasher did not "
                "compute in this step",
                hint="a mode of the engine that SlackTier does not know; report its flags",
            )
        self.path.join(layer_index, out)
        self.checker.sample(table, self._asked[:, layer_index].reshape(-1), out)

    def close(self) -> None:
        self.path.close()


def same_ids(asked: torch.Tensor, issued: torch.Tensor) -> bool:
    """Are these the same ids? A view of the same memory is, at the cost of a few comparisons."""
    if asked.shape != issued.shape:
        return False
    if asked.data_ptr() == issued.data_ptr() and asked.stride() == issued.stride() and asked.dtype == issued.dtype:
        return True
    return not asked.is_cuda and torch.equal(asked, issued)
