# SPDX-License-Identifier: Apache-2.0
"""Keys of objects to look at again: each at most once in the queue, and never by two workers at a time.

A key that is added while it is worked on comes again afterwards, so no change is lost and none is done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class WorkQueue(Generic[Item]):
    """Not thread-safe: one event loop."""

    def __init__(self) -> None:
        self._ready: asyncio.Queue[Item] = asyncio.Queue()
        self._queued: set[Item] = set()
        self._working: set[Item] = set()
        self._again: set[Item] = set()
        self._timers: dict[Item, asyncio.TimerHandle] = {}

    def add(self, item: Item) -> None:
        """To be looked at now."""
        if timer := self._timers.pop(item, None):
            timer.cancel()
        if item in self._working:
            self._again.add(item)
        elif item not in self._queued:
            self._queued.add(item)
            self._ready.put_nowait(item)

    def add_after(self, item: Item, delay_s: float) -> None:
        """To be looked at in a while; the earlier of two such times counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(item)
        if item in self._queued or (timer and timer.when() <= loop.time() + delay_s):
            return
        if timer:
            timer.cancel()
        self._timers[item] = loop.call_later(delay_s, self.add, item)

    async def get(self) -> Item:
        """The next one; done() must follow."""
        item = await self._ready.get()
        self._queued.discard(item)
        self._working.add(item)
        return item

    def done(self, item: Item) -> None:
        self._working.discard(item)
        if item in self._again:
            self._again.discard(item)
            self.add(item)

    def __len__(self) -> int:
        return len(self._queued) + len(self._working)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
