# SPDX-License-Identifier: Apache-2.0
"""Bits of our rows against those of the engine's own gather kernel over the same table."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slacktier_engine.decode_bench.arms import COLUMNS, DIM, PathArm
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS
from slacktier_engine.decode_bench.stock import StockKernels
from slacktier_engine.decode_bench.table import PAIR_ROWS, BenchTable


class Checker:
    """Counts rows compared and rows that differ, NaN payloads included."""

    def __init__(self, kernels: StockKernels, table: BenchTable, tokens_max: int, device: torch.device) -> None:
        self._kernels, self._table = kernels, table
        self._expected = torch.empty((tokens_max * COLUMNS, DIM), dtype=torch.bfloat16, device=device)
        self.rows_checked = 0
        self.mismatched_rows = 0
        self.pair_rows_checked = 0

    def compare(self, ids: torch.Tensor, out: Sequence[torch.Tensor], *, tp: int) -> int:
        """Compare rank 0's rows of a step on all layers; returns how many differ. Waits for the device."""
        wrong = 0
        for index in range(len(LOOKUP_LAYERS)):
            flat = ids[:, index].reshape(-1)
            expected = self._expected[: flat.numel()]
            self._kernels.gather(
                self._table.weights, self._table.scales, flat, expected, (0, self._table.row_count), sort_ids=False
            )
            if tp > 1:
                expected[flat % tp != 0] = 0.0
            found = out[index][: flat.numel()]
            wrong += int((found.view(torch.int16) != expected.view(torch.int16)).any(dim=1).sum())
            self.rows_checked += flat.numel()
        self.mismatched_rows += wrong
        return wrong

    def check_pairs(self, arm: PathArm, out: Sequence[torch.Tensor]) -> int:
        """Every (exponent, byte) pair through the whole path; returns how many rows differ."""
        device = self._expected.device
        tokens = -(-PAIR_ROWS // COLUMNS)
        column = torch.arange(tokens * COLUMNS, device=device).remainder(PAIR_ROWS).reshape(tokens, 1, COLUMNS)
        ids = column.expand(tokens, len(LOOKUP_LAYERS), COLUMNS).contiguous()
        arm.extend(ids, out)
        self.pair_rows_checked += PAIR_ROWS * len(LOOKUP_LAYERS)
        return self.compare(ids, out, tp=1)
