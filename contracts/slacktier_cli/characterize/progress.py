# SPDX-License-Identifier: Apache-2.0
"""How far long work has come, and how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol


class Reporter(Protocol):
    """Shows how far long work has come."""

    def work(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """A context that gives a function to call with the amount done since it was last called."""


@dataclass
class Stopwatch:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
