# SPDX-License-Identifier: Apache-2.0
"""How often a caller may ask: a bucket of tokens per caller that fills at a steady rate."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

BUCKETS_MAX: Final = 20_000


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class RateLimit:
    """At most `burst` requests at once and `per_s` a second for each key; the keys least lately seen are forgotten."""

    def __init__(self, per_s: float, burst: float, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._now_s = per_s, burst, now_s
        self._buckets: OrderedDict[Hashable, _Bucket] = OrderedDict()

    def wait_s(self, key: Hashable) -> float:
        """0 and the request is counted, or how long until the next one is allowed."""
        now = self._now_s()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, now)
            if len(self._buckets) > BUCKETS_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        bucket.left = min(self._burst, bucket.left + (now - bucket.at_s) * self._per_s)
        bucket.at_s = now
        if bucket.left < 1:
            return (1 - bucket.left) / self._per_s
        bucket.left -= 1
        return 0.0
