# SPDX-License-Identifier: Apache-2.0
"""How evenly a way to cut a table loads the ranks: rows that each must read, summed over steps. numpy only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


def rank_of(row_counts: npt.NDArray[np.int64], columns: int, tp: int) -> dict[str, Callable[[Ids], Ids]]:
    """cut -> rank of each id, ids [T, L, C]: stripe (ours), rows (equal ranges), columns (whole hash columns)."""
    return {
        "stripe": lambda ids: ids % tp,
        "rows": lambda ids: ids * tp // row_counts[None, :, None],
        "columns": lambda ids: np.broadcast_to(np.arange(columns) * tp // columns, ids.shape).astype(np.int64),
    }


def imbalance(
    steps: Iterable[Ids], row_counts: npt.NDArray[np.int64], columns: int, tp: int, *, seen: Ids | None = None
) -> dict[str, Any]:
    """Maximum over mean of the ranks' totals, per cut; a row that a step asks for twice counts once.

    seen  [T, L, C]: rows that a cache without end holds when the steps begin, as it does those of earlier steps;
          None: no cache
    """
    cuts = rank_of(row_counts, columns, tp)
    totals = {name: np.zeros(tp, np.int64) for name in cuts}
    cached = None if seen is None else [np.unique(seen[:, layer]) for layer in range(seen.shape[1])]
    for ids in steps:
        for layer in range(ids.shape[1]):
            rows, first = np.unique(ids[:, layer], return_index=True)
            missing = np.ones(rows.size, bool) if cached is None else ~np.isin(rows, cached[layer], assume_unique=True)
            for name, rank in cuts.items():
                owner = rank(ids)[:, layer].reshape(-1)[first[missing]]
                totals[name] += np.bincount(owner, minlength=tp)[:tp]
            if cached is not None:
                cached[layer] = np.union1d(cached[layer], rows[missing])
    return {name: round(float(count.max() / count.mean()), 4) for name, count in totals.items()}
