# SPDX-License-Identifier: Apache-2.0
"""What tierd's head says, kept up to date by a watch. After a lost connection it goes on where it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from slacktier.api import Change, ChangeType, Kind
from slacktier_operator.tierd_client import TierdClient, TierdError

log = logging.getLogger(__name__)
_RETRY_S = 2.0
Items = dict[Kind, dict[str, dict[str, Any]]]


class TierdState:
    """Resources by kind and name, as the API answers them.

    `connected` is False until the first sync is whole and while a watch is down: what is known is then old, and nothing
    that would need more is decided by it.
    """

    def __init__(self, client: TierdClient, changed: Callable[[Kind | None, str | None], None]) -> None:
        self._client = client
        self._changed = changed
        self._version: int | None = None
        self.connected = False
        self.why_not = "not asked yet"
        self.asked = asyncio.Event()  # an answer, or that there is none
        self.items: Items = {kind: {} for kind in Kind}
        self._fresh: Items | None = None  # what a sync has told so far; _left: how many more it will
        self._left = 0

    def get(self, kind: Kind, name: str) -> dict[str, Any] | None:
        return self.items[kind].get(name)

    def note(self, kind: Kind, name: str, item: dict[str, Any]) -> None:
        """What a PUT answered, unless the watch has already brought something newer."""
        known = self.items[kind].get(name)
        if known is None or known["version"] <= item["version"]:
            self.items[kind][name] = item

    async def follow(self) -> None:
        """Watch for ever; a broken watch is opened again."""
        while True:
            try:
                async for change in self._client.watch(self._version, self._opened):
                    self._take(change)
            except TierdError as exc:
                self._lost(str(exc))
            else:
                self._lost("tierd: the watch ended")
            await asyncio.sleep(_RETRY_S)

    def _lost(self, why: str) -> None:
        if self.connected or self.why_not != why:
            log.warning("%s", why)
        self.connected, self.why_not, self._fresh = False, why, None
        self.asked.set()
        self._changed(None, None)

    def _opened(self) -> None:
        """Where nothing has changed meanwhile, the next event may be long in coming."""
        if self._version is not None:
            self._connect()

    def _connect(self) -> None:
        if not self.connected:
            log.info("tierd: watching from version %d", self._version)
            self.connected, self.why_not = True, ""
            self.asked.set()
            self._changed(None, None)

    def _take(self, change: Change) -> None:
        if change.type is ChangeType.SYNC:
            self._fresh, self._left = {kind: {} for kind in Kind}, change.resources
        elif self._fresh is not None:
            self._put(self._fresh, change)
            self._left -= 1
        else:
            self._version = change.version
            self._put(self.items, change)
            self._changed(change.kind, change.name)
        # Half of what there is would look as if the rest were gone.
        if self._fresh is not None and self._left == 0:
            self.items, self._fresh, self._version = self._fresh, None, change.version
            self._connect()
            self._changed(None, None)

    def _put(self, items: Items, change: Change) -> None:
        if change.kind is None or change.name is None:
            return
        if change.type is ChangeType.PUT and change.item is not None:
            items[change.kind][change.name] = change.item
        else:
            items[change.kind].pop(change.name, None)
