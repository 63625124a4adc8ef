# SPDX-License-Identifier: Apache-2.0
"""A Prometheus histogram as plain numbers, cheap enough for a step's path. The standard library only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class Histogram:
    """Counts per bucket (the last one is +Inf) and the sum."""

    def __init__(self, buckets: Sequence[float]) -> None:
        self._buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self._buckets, value)] += 1
        self.total += value

    def as_json(self) -> dict[str, Any]:
        return {"counts": self.counts, "sum": self.total}
