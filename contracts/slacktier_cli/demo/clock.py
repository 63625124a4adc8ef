# SPDX-License-Identifier: Apache-2.0
"""A plain CLOCK cache, the yardstick that the native row cache is held against.

One global ring of slots with a reference bit each. A hit sets the bit. A miss takes the slot under the hand if its
bit is clear; else the hand clears the bit and goes on. A new row comes in with its bit clear, so that rows seen once
go first. Every lookup counts; a row asked for again in the same step is a hit, also when the ring is so small that it
was evicted in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class HitCount:
    """Lookups and how many of them were hits."""

    lookups: int = 0
    hits: int = 0

    @property
    def rate(self) -> float | None:
        return self.hits / self.lookups if self.lookups else None


class ClockCache:
    """CLOCK over row ids; `capacity` in rows, 0 for no cache."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._row_at: list[int] = []
        self._is_referenced = bytearray(capacity)
        self._slot_of: dict[int, int] = {}
        self._hand = 0

    def __contains__(self, row_id: int) -> bool:
        return row_id in self._slot_of

    def step(self, row_ids: Iterable[int]) -> int:
        """Look up one step's rows in order; returns how many were hits."""
        hits = 0
        seen: set[int] = set()
        slot_of, is_referenced = self._slot_of, self._is_referenced
        for row_id in row_ids:
            slot = slot_of.get(row_id)
            if slot is not None:
                is_referenced[slot] = 1
                hits += 1
            elif row_id in seen:
                hits += 1
            elif self.capacity:
                self._insert(row_id)
            seen.add(row_id)
        return hits

    def _insert(self, row_id: int) -> None:
        if len(self._row_at) < self.capacity:
            slot = len(self._row_at)
            self._row_at.append(row_id)
        else:
            slot = self._free_slot()
            del self._slot_of[self._row_at[slot]]
            self._row_at[slot] = row_id
        self._slot_of[row_id] = slot
        self._is_referenced[slot] = 0

    def _free_slot(self) -> int:
        is_referenced, hand = self._is_referenced, self._hand
        while is_referenced[hand]:
            is_referenced[hand] = 0
            hand = hand + 1 if hand + 1 < self.capacity else 0
        self._hand = hand + 1 if hand + 1 < self.capacity else 0
        return hand


def simulate(steps: Iterable[Sequence[int]], capacity: int) -> HitCount:
    """Hit rate of a cold CLOCK cache over steps of row ids."""
    cache, count = ClockCache(capacity), HitCount()
    for row_ids in steps:
        count.lookups += len(row_ids)
        count.hits += cache.step(row_ids)
    return count
