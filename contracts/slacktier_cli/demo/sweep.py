# SPDX-License-Identifier: Apache-2.0
"""Checks more rows after the blocks: pages in random order, all rows of each, through the native path."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from slacktier_cli.demo.document import SweepResult
from slacktier_cli.demo.probe import Ids, staged_layers
from slacktier_cli.demo.tables import StagedTable
from slacktier_native.core import LookupCore
from slacktier_native.pages import pattern_check

_STEP_ROWS: Final = 30_000


def sweep_rows(
    tables: Sequence[StagedTable], row_count: int, *, seed: int, progress: Callable[[int], None]
) -> SweepResult:
    """Read and check at least row_count rows of all layers together, fewer only if the tables have fewer.

    progress  told how many rows are checked so far
    raises    ContractError or TierError if a row cannot be had
    """
    began, checked, mismatched = time.perf_counter(), 0, 0
    rng = np.random.default_rng((seed, len("sweep")))
    orders = [_row_order(table, rng) for table in tables]
    with LookupCore(staged_layers(tables)) as core:
        for first in range(0, max(order.size for order in orders), _STEP_ROWS):
            if checked >= row_count:
                break
            row_ids = [order[first : first + _STEP_ROWS] for order in orders]
            mismatched += _check_step(core, tables, row_ids)
            checked += sum(ids.size for ids in row_ids)
            progress(checked)
    return SweepResult(checked, mismatched, time.perf_counter() - began)


def _row_order(table: StagedTable, rng: np.random.Generator) -> Ids:
    """All rows of the table, page by page, the pages in random order."""
    pages = rng.permutation(-(-table.rows // table.rows_per_page)).astype(np.int64)
    rows = (pages[:, None] * table.rows_per_page + np.arange(table.rows_per_page)).reshape(-1)
    return rows[rows < table.rows]


def _check_step(core: LookupCore, tables: Sequence[StagedTable], row_ids: Sequence[Ids]) -> int:
    """One step's rows against the pattern; returns how many differ."""
    core.begin(row_ids)
    mismatched = 0
    try:
        for index, (table, ids) in enumerate(zip(tables, row_ids, strict=True)):
            core.wait(index)
            rows = np.empty((ids.size, table.payload_bytes + table.scale_bytes), np.uint8)
            core.gather(index, rows)
            bad, _ = pattern_check(table.pattern_seed, ids, rows, table.payload_bytes, table.scale_bytes)
            mismatched += bad
    finally:
        core.end()
    return mismatched
