# SPDX-License-Identifier: Apache-2.0
"""What staging and verifying report: counters, seconds, and how progress is told to whoever shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

GIB: Final = 1 << 30


# Told after each chunk: which phase, bytes done, and bytes of the whole phase.
Progress = Callable[[str, int, int], None]


def no_progress(phase: str, done_bytes: int, total_bytes: int) -> None:
    """Shows nothing."""


@dataclass(slots=True)
class PhaseCount:
    """One phase's bytes and its wall time in seconds."""

    bytes: int = 0
    seconds: float = 0.0

    @property
    def gib_s(self) -> float:
        return self.bytes / GIB / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class StageReport:
    """What a staging run did.

    outcome        "staged", "resumed", "unchanged" (0 bytes written) or "partial"
    bytes_read     from the source; bytes_written to the targets, superblocks and all; bytes_verified read back
    phases         "check" (source against what is staged), "stage", "verify"
    direct_source, direct_target  whether O_DIRECT was in force; otherwise the page cache was used
    """

    outcome: str
    table_uuid: str
    layer_id: int
    epoch: int
    row_count: int
    page_count: int
    pages_staged: int
    pages_resumed_at: int
    direct_source: bool
    direct_target: bool
    source_digest: str = ""
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_verified: int = 0
    phases: dict[str, PhaseCount] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[PhaseCount]:
        """Times a phase; the caller adds its bytes."""
        count = self.phases.setdefault(name, PhaseCount())
        started = time.monotonic()
        try:
            yield count
        finally:
            count.seconds += time.monotonic() - started

    def as_json(self) -> dict[str, Any]:
        flat = {name: getattr(self, name) for name in StageReport.__slots__ if name != "phases"}
        flat["phases"] = {
            name: {"bytes": count.bytes, "seconds": round(count.seconds, 3), "gib_s": round(count.gib_s, 3)}
            for name, count in self.phases.items()
        }
        return flat
