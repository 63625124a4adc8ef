# SPDX-License-Identifier: Apache-2.0
"""Steps with a forced hit rate: rows of a warm set that a cache holds, and rows that no step has asked for before.

Rank 0's lookups of a layer: `pages` distinct rows, the rest repeats of these; a share `hit` comes from the warm set.
Other ranks' ids fill the step up, so that it has as many lookups as one with real tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
WARM_ROWS = 65_536  # of each layer and rank


@dataclass(frozen=True)
class DrawnSteps:
    """warm [T, L, C]: every row of the warm set, rank 0's; steps [S, T, L, C]."""

    warm: Ids
    steps: Ids


def draw_steps(
    *,
    tokens: int,
    layers: int,
    columns: int,
    tp: int,
    pages: int,
    hit: float,
    steps: int,
    row_count: int,
    seed: int = 1,
) -> DrawnSteps:
    """Steps over rows of a table of row_count; no two steps share a row outside the warm set."""
    rng = np.random.default_rng(seed)
    lookups, mine = tokens * columns, tokens * columns // tp
    hits = round(hit * pages)
    owned = rng.permutation((row_count - tp) // tp)[: WARM_ROWS + steps * (pages - hits)] * tp
    warm_set, fresh = owned[:WARM_ROWS], owned[WARM_ROWS:]
    ids = np.empty((steps, layers, lookups), np.int64)
    for step in range(steps):
        for layer in range(layers):
            new = fresh[step * (pages - hits) : (step + 1) * (pages - hits)]
            distinct = np.concatenate([rng.choice(warm_set, hits, replace=False), new])
            asked = np.concatenate([distinct, rng.choice(distinct, mine - pages)])
            others = rng.integers(0, (row_count - tp) // tp, lookups - mine) * tp + rng.integers(1, max(tp, 2))
            ids[step, layer] = rng.permutation(np.concatenate([asked, others[: lookups - mine]]))
    shaped = ids.reshape(steps, layers, tokens, columns).transpose(0, 2, 1, 3)
    warm = np.resize(warm_set, (-(-WARM_ROWS // columns), 1, columns)).repeat(layers, axis=1)
    return DrawnSteps(np.ascontiguousarray(warm), np.ascontiguousarray(shaped))
