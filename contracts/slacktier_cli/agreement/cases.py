# SPDX-License-Identifier: Apache-2.0
"""What is run: calibration on memory, then emulated disks with other cache splits than were calibrated.

Calibration gives, for each number of sessions, the baseline step, pages per step against cache rows (tables in memory,
so nothing is held back), and `s` with what this machine adds to a read (a device with a fixed delay only). The cases
that are predicted use none of their own measurements: their read model is the delay model in force.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slacktier.delay import SHIPPED, DelayModel

DISKS: Final = (SHIPPED["paper-nvme-shared"], SHIPPED["paper-nvme-per-rank"])
# Late by more than either window of any load, so that the stall is the delay, less a window, plus what is to be found.
# Its pages take time as the disks' do: released at one instant, both layers' rows would be checked together, and what
# the machine adds to the first one's would look larger than it is behind a disk.
FIXED: Final = DelayModel("fixed", 12_000.0, 3.05, 0.0)
CACHE_STEPS: Final = 40  # the budget holds what so many steps look up, so that it is warm within seconds
# Layer 1's share of the cache; None is no cache at all.
SHARES: Final[tuple[float | None, ...]] = (None, 0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Case:
    """One run: sessions, a disk (None: tables in memory), cache rows of the first and the later layer."""

    sessions: int
    disk: DelayModel | None
    cache_rows: tuple[int, int]

    @property
    def name(self) -> str:
        where = "memory" if self.disk is None else self.disk.name.removeprefix("paper-")
        return f"{self.sessions}, {where}, {self.cache_rows[0]}+{self.cache_rows[1]}"


def budget(sessions: int, lookups_per_session: int) -> int:
    """Cache rows of both layers together, a multiple of 4 so that all shares are whole."""
    return CACHE_STEPS * sessions * lookups_per_session // 4 * 4


def calibration(sessions: int, rows: int) -> list[Case]:
    """Memory with every share of the budget on both layers, from none, and the fixed delay."""
    sizes = [rows * quarter // 4 for quarter in range(5)]
    return [*(Case(sessions, None, (size, size)) for size in sizes), Case(sessions, FIXED, (0, 0))]


def predicted(sessions: int, rows: int) -> list[Case]:
    """Every share on both disks."""
    splits = {_split(rows, share) for share in SHARES}
    return [Case(sessions, disk, split) for disk in DISKS for split in sorted(splits)]


def _split(rows: int, share: float | None) -> tuple[int, int]:
    if share is None:
        return 0, 0
    first = round(rows * share)
    return first, rows - first
