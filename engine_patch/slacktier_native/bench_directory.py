# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench directory`: the pass over one step's row ids, deduplication and miss list included.

128 tokens x 24 ids x 2 layers against 1M cached rows of tables with a full-size address space, whose rows are the test
pattern, encoded when they are read. The pass is timed inside the library; reading happens on another thread.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.cache_policy import CachePolicy
from slacktier.page import RowFormat, Superblock
from slacktier_native.core import LayerSetup, LookupCore, PatternSource

ROW_COUNT: Final = 384_006_168
LAYER_IDS: Final = (1, 14)
COLUMNS: Final = 24
WARM_STEP: Final = 20_000


def _source(layer_id: int) -> PatternSource:
    sb = Superblock(
        table_uuid=uuid.UUID(int=layer_id), layer_id=layer_id, epoch=1, row_count=ROW_COUNT, payload_bytes=256,
        scale_bytes=8, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="pattern",
    )  # fmt: skip
    return PatternSource(sb, seed=layer_id)


def _step(core: LookupCore, ids: list[npt.NDArray[np.int64]]) -> tuple[float, float, int, int]:
    """One step: (pass us of all layers, us to the first miss handed over, hits and repeats, lookups)."""
    core.begin(ids)
    results = [core.wait(index) for index in range(len(ids))]
    core.end()
    found = sum(r.hits + r.repeats for r in results)
    return sum(r.pass_us for r in results), results[0].resolve_us, found, sum(r.lookups for r in results)


def run(
    *,
    tokens: int = 128,
    cache_rows: int = 1_000_000,
    cache_policy: CachePolicy = CachePolicy.CLOCK,
    hit_rates: tuple[float, ...] = (0.89, 0.75, 0.40),
    steps: int = 600,
) -> dict[str, Any]:
    """Median and p99 of the pass per asked hit rate; bytes of directory per cached row.

    The first hit rate's figures stand at the top as p50_us and p99_us.
    """
    rng = np.random.default_rng(1)
    per_layer = cache_rows // len(LAYER_IDS)
    resident = [rng.integers(0, ROW_COUNT, per_layer // 2) for _ in LAYER_IDS]
    cells = []
    layers = [LayerSetup(i, (_source(i),), per_layer, cache_policy=cache_policy) for i in LAYER_IDS]
    with LookupCore(layers) as core:
        for first in range(0, per_layer // 2, WARM_STEP):
            _step(core, [ids[first : first + WARM_STEP] for ids in resident])
        for rate in hit_rates:
            cells.append(_cell(core, rng, resident, tokens * COLUMNS, rate, steps))
        stats = core.stats()[LAYER_IDS[0]]
    return {
        "tokens": tokens,
        "cache_rows": cache_rows,
        "cache_policy": cache_policy,
        "p50_us": cells[0]["p50_us"],
        "p99_us": cells[0]["p99_us"],
        "bytes_per_row": stats["directory_bytes"] / stats["cache_rows"],
        "cells": cells,
    }


def _cell(
    core: LookupCore,
    rng: np.random.Generator,
    resident: list[npt.NDArray[np.int64]],
    count: int,
    rate: float,
    steps: int,
) -> dict[str, float]:
    # Drawn before, so that drawing does not empty the processor's caches between two passes.
    drawn = [
        [
            np.where(
                rng.random(count) < rate, known[rng.integers(0, known.size, count)], rng.integers(0, ROW_COUNT, count)
            )
            for known in resident
        ]
        for _ in range(steps)
    ]
    passes, firsts, found, asked = [], [], 0, 0
    for ids in drawn:
        pass_us, first_us, hits, lookups = _step(core, ids)
        passes.append(pass_us)
        firsts.append(first_us)
        found += hits
        asked += lookups
    return {
        "hit_rate": found / asked,
        "p50_us": float(np.percentile(passes, 50)),
        "p99_us": float(np.percentile(passes, 99)),
        "first_miss_us_p50": float(np.percentile(firsts, 50)),
    }
