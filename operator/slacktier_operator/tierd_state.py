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


class TierdState:
    """Resources by kind and name, as the API answers them. `connected` is False until the first sync and while a watch
    is down: what is known is then old, and nothing that would need more is decided by it."""

    def __init__(self, client: TierdClient, changed: Callable[[Kind | None, str | None], None]) -> None:
        self._client = client
        self._changed = changed
        self._version: int | None = None
        self.connected = False
        self.why_not = "not asked yet"
        self.items: dict[Kind, dict[str, dict[str, Any]]] = {kind: {} for kind in Kind}

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
                async for change in self._client.watch(self._version):
                    self._take(change)
            except TierdError as exc:
                self._lost(str(exc))
            else:
                self._lost("tierd: the watch ended")
            await asyncio.sleep(_RETRY_S)

    def _lost(self, why: str) -> None:
        if self.connected or self.why_not != why:
            log.warning("%s", why)
        self.connected, self.why_not = False, why
        self._changed(None, None)

    def _take(self, change: Change) -> None:
        self._version = change.version
        if change.type is ChangeType.SYNC:
            for items in self.items.values():
                items.clear()
        elif change.kind is not None and change.name is not None:
            if change.type is ChangeType.PUT and change.item is not None:
                self.items[change.kind][change.name] = change.item
            else:
                self.items[change.kind].pop(change.name, None)
        if not self.connected:
            log.info("tierd: watching from version %d", change.version)
            self.connected, self.why_not = True, ""
            self._changed(None, None)
        self._changed(change.kind, change.name)
