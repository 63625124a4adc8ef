# SPDX-License-Identifier: Apache-2.0
"""Time as the engine sees it: nanoseconds that only grow, and a sleep that ends on time."""

from __future__ import annotations

import time
from typing import Protocol

from slacktier_native.core import sleep_until_ns


class Clock(Protocol):
    def now_ns(self) -> int:
        """Nanoseconds on a clock that only grows."""

    def sleep_until(self, until_ns: int) -> None:
        """Return at that instant or as soon after it as can be."""


class MonotonicClock:
    """CLOCK_MONOTONIC; sleeps are native, the last microseconds are spun with the interpreter lock released."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until(self, until_ns: int) -> None:
        sleep_until_ns(until_ns)
