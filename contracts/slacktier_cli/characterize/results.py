# SPDX-License-Identifier: Apache-2.0
"""What a characterization found, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from slacktier_cli.characterize.policies import Curve, Load
from slacktier_cli.characterize.reuse import Coverage, Distinct, Unseen
from slacktier_cli.characterize.sampling import Sampling


@dataclass(frozen=True)
class Lossy:
    """Held-out sessions with rows outside the seen-set read from nowhere, beside the same with all rows read.

    sessions  at a time
    share     of decode lookups that are skipped wherever they miss: their rows are outside the seen-set
    """

    sessions: int
    tokens_per_step: float
    share: float
    uncached_pages: float
    uncached_pages_all: float
    skipping: Curve
    reading_all: Curve


@dataclass(frozen=True)
class LoadStudy:
    """One layer under one number of sessions.

    curves           of the policies asked for; the static one is of the held-out sessions, static_sessions at a time
    unlimited        hit rate of a cache that never evicts
    steps            distinct rows among the decode lookups of a step
    """

    load: Load
    curves: tuple[Curve, ...]
    unlimited: float
    steps: Distinct
    static_sessions: int
    lossy: Lossy


@dataclass(frozen=True)
class LayerStudy:
    """One layer: its loads, and the figures that do not depend on how sessions interleave."""

    layer_id: int
    row_count: int
    columns: int
    orders: int
    rows_per_page: int
    distinct_rows: float
    sampling: Sampling
    loads: tuple[LoadStudy, ...]
    random_batches: Distinct
    windows: Distinct
    prefill_windows: Distinct
    coverage: Coverage
    unseen: Unseen
