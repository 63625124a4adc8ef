# SPDX-License-Identifier: Apache-2.0
"""The in-server checker: rows that the tier delivered against the same rows of the checkpoint, bit for bit.

What a row must be comes from the engine's own arithmetic on the checkpoint's tensors (checkpoint_rows.py).
"""

from __future__ import annotations

import random

import torch

from slacktier.errors import ContractError
from slacktier_engine.checkpoint_rows import CheckpointRows
from slacktier_engine.counters import Counts
from slacktier_engine.settings import OnMismatch
from slacktier_engine.step_path import TableShape


class RowMismatchError(ContractError):
    """A row is not the checkpoint's. Nothing is served after it."""


class Checker:
    """Compares a share of the tokens of each step, before the step's rows are used.

    rows      the checkpoint's; None: nothing to compare with
    rate      share of tokens that are checked; may be set from another thread
    rank, tp  rows of other ranks are zeros here, so they are passed over
    """

    def __init__(
        self, rows: CheckpointRows | None, counts: Counts, *, rate: float, on_mismatch: OnMismatch,
        rank: int = 0, tp: int = 1,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.rate = rate
        self._counts = counts
        self._on_mismatch = on_mismatch
        self.rank, self.tp = rank, tp
        self._draw = random.Random(20221)  # noqa: S311 -- a sample, not a secret

    def sample(self, table: TableShape, row_ids: torch.Tensor, out: torch.Tensor) -> None:
        """row_ids [T * C], out [T * C, dim] bf16; raises RowMismatchError, if mismatches fail."""
        if not self.rate or self.rows is None or row_ids.is_cuda:
            return
        if self.rate >= 1:
            self.compare(table, row_ids, out)
            return
        tokens = row_ids.shape[0] // table.columns
        picked = [token for token in range(tokens) if self._draw.random() < self.rate]
        if picked:
            ids = row_ids.view(tokens, table.columns)[picked].reshape(-1)
            self.compare(table, ids, out.view(tokens, table.columns, -1)[picked].view(len(ids), -1))

    def compare(self, table: TableShape, row_ids: torch.Tensor, out: torch.Tensor) -> int:
        """Rows compared; raises RowMismatchError, if mismatches fail."""
        if self.rows is None:
            return 0
        mine = (row_ids >= 0) & (row_ids % self.tp == self.rank)
        ids, found = row_ids[mine], out[mine]
        if not len(ids):
            return 0
        expected = self.rows.rows(table, ids.cpu()).to(found.device)
        differs = (expected.view(torch.int16) != found.contiguous().view(torch.int16)).any(dim=1)
        layer = self._counts.layers[table.layer_id]
        layer.checked += len(ids)
        wrong = int(differs.sum())
        if wrong:
            layer.mismatched += wrong
            self._report(table, ids[differs], wrong)
        return len(ids)

    def _report(self, table: TableShape, wrong_ids: torch.Tensor, wrong: int) -> None:
        error = RowMismatchError(
            f"layer {table.layer_id}: {wrong} rows differ from the checkpoint's, the first is row {int(wrong_ids[0])}",
            hint="the region is of another table or revision: stage this checkpoint, or name its region",
        )
        if self._on_mismatch is OnMismatch.FAIL:
            raise error
