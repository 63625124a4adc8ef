# SPDX-License-Identifier: Apache-2.0
"""Watches: the store's changes as server-sent events, and lists that wait."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from typing import Any, Final

from slacktier.api import ChangeType, Kind
from slacktier_tierd.head.service import public_spec
from slacktier_tierd.head.store import Store

HEARTBEAT_S: Final = 10.0


def _event(version: int, change: ChangeType, kind: Kind, name: str, item: bytes | None) -> bytes:
    head: dict[str, Any] = {"type": change.value, "kind": kind, "name": name, "version": version}
    text = json.dumps(head)[:-1].encode() + b', "item": ' + (item or b"null") + b"}"
    return b"id: %d\ndata: %s\n\n" % (version, text)


def _sync(version: int, resources: int) -> bytes:
    head = {"type": ChangeType.SYNC.value, "kind": None, "name": None, "version": version, "item": None}
    return b"id: %d\ndata: %s\n\n" % (version, json.dumps({**head, "resources": resources}).encode())


def _put(store: Store, kind: Kind, name: str, version: int) -> bytes:
    """A resource as it is now, or that it is gone."""
    entry = store.get(kind, name)
    if entry is None:
        return _event(version, ChangeType.DELETE, kind, name, None)
    return _event(version, ChangeType.PUT, kind, name, entry.encoded(public_spec(kind)))


def _resources(store: Store, kinds: frozenset[Kind]) -> bytes:
    """A sync and a put for every resource, all as of now."""
    parts = []
    for kind in sorted(kinds):
        entries, _ = store.page(kind, after="", limit=store.count(kind) + 1)
        parts += [_put(store, kind, entry.name, store.version) for entry in entries]
    return b"".join([_sync(store.version, len(parts)), *parts])


async def watch(store: Store, kinds: frozenset[Kind], version: int | None) -> AsyncIterator[bytes]:
    """Events from a version on, or from everything there is; never ends by itself."""
    at = version
    while True:
        changes = None if at is None else store.changes_since(at)
        newest = store.version
        if changes is None:
            yield _resources(store, kinds)
        else:
            chosen = [change for change in changes if change.kind in kinds]
            if chosen:
                yield b"".join(_put(store, change.kind, change.name, change.version) for change in chosen)
        at = newest
        if not await store.wait_beyond(functools.partial(_is_beyond, store, newest), HEARTBEAT_S):
            yield b": still here\n\n"


def _is_beyond(store: Store, version: int) -> bool:
    return store.version > version


async def wait_for_kind(store: Store, kind: Kind, version: int, wait_s: float) -> None:
    """Until something of that kind is newer than `version`, or the time is up."""
    await store.wait_beyond(lambda: store.kind_version(kind) > version or version > store.version, wait_s)
