# SPDX-License-Identifier: Apache-2.0
"""Which objects are looked at again when something changes, and the workers that do it.

One object at a time is observed, decided, applied and reported by the module of its kind. A failure is reported in the
object's log line and tried again, ever more slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from slacktier.api import Kind
from slacktier.errors import SlackTierError
from slacktier_operator.context import Context
from slacktier_operator.kube import KubeError
from slacktier_operator.names import Key, owner_of
from slacktier_operator.store import KINDS, key_of, placement_of

log = logging.getLogger(__name__)
WORKERS: Final = 8
BACKOFF_S: Final = (0.5, 15.0)
Ref = tuple[str, Key]
Handler = Callable[[Context, Key], Awaitable[float | None]]


class Reconciler:
    """handlers by kind: each answers after how many seconds it wants to look again, or None."""

    def __init__(self, context: Context, handlers: Mapping[str, Handler]) -> None:
        self._context = context
        self._handlers = handlers
        self._failures: dict[Ref, int] = {}
        self._connected = asyncio.Event()

    def changed(self, kind: str, body: Mapping[str, Any]) -> None:
        """An object of the cluster changed: it and all that looks at it are looked at again."""
        key, queue, store = key_of(body), self._context.queue, self._context.store
        if kind in self._handlers:
            queue.add((kind, key))
        if kind == "Pod" and (placement := placement_of(body)):
            queue.add(("TablePlacement", placement))
        elif kind == "TablePlacement":
            queue.add(("LookupTable", Key(key.namespace, (body.get("spec") or {}).get("table", ""))))
        elif kind == "LookupTable":
            for placement_body in store.all("TablePlacement"):
                each = key_of(placement_body)
                if each.namespace == key.namespace and placement_body["spec"].get("table") == key.name:
                    queue.add(("TablePlacement", each))
        elif kind == "TierPool":
            self._add_all("TablePlacement")
        elif kind == "Node":
            self._add_all("TierPool")

    def tierd_changed(self, kind: Kind | None, name: str | None) -> None:
        """tierd's resource changed; None: the connection did, and with it everything may have."""
        queue = self._context.queue
        if kind is None or name is None:
            if self._context.state.connected:
                self._connected.set()
            for each in self._handlers:
                self._add_all(each)
            return
        if kind is Kind.POOLS:
            queue.add(("TierPool", Key("", name)))
            return
        if kind is Kind.MEASUREMENTS:
            self._add_all("TierPool")
            return
        for ref in self._context.owners.get((kind, name), ()):
            queue.add(ref)

    def _add_all(self, kind: str) -> None:
        for key in self._context.store.keys(kind):
            self._context.queue.add((kind, key))

    async def work(self) -> None:
        """One worker, for ever."""
        while True:
            ref = await self._context.queue.get()
            try:
                await self._one(ref)
            finally:
                self._context.queue.done(ref)

    async def _one(self, ref: Ref) -> None:
        kind, key = ref
        try:
            again_s = await self._handlers[kind](self._context, key)
        except SlackTierError as exc:
            self._failed(ref, str(exc))
        except Exception:
            log.exception("%s %s: a fault of ours", kind, key)
            self._failed(ref, "")
        else:
            self._failures.pop(ref, None)
            if again_s is not None:
                self._context.queue.add_after(ref, again_s)

    def _failed(self, ref: Ref, message: str) -> None:
        count = self._failures[ref] = self._failures.get(ref, 0) + 1
        if message and count == 1:
            log.warning("%s %s: %s", ref[0], ref[1], message)
        first, most = BACKOFF_S
        self._context.queue.add_after(ref, min(most, first * 2 ** min(count - 1, 10)))

    async def _forget_the_gone(self) -> None:
        """What was deleted while no watch was open: a new watch starts with what is there and never tells of it.

        The same for what was deleted while this process was not there, of which only tierd still knows.
        """
        store, items = self._context.store, self._context.state.items
        for kind in KINDS:
            known = {key_of(body): body for body in store.all(kind)}
            there = {key_of(body) for body in await self._context.kube.list_all(kind)}
            for key in known.keys() - there:
                if store.get(kind, key) is known[key]:  # not made anew meanwhile
                    store.remove(kind, key)
                    self.changed(kind, known[key])
            for owner in {
                owner_of(each, name) for each in items for name in items[each] if _is_ours(items[each][name])
            }:
                if owner is not None and owner[0] == kind and owner[1] not in there:
                    self._context.queue.add(owner)

    async def first_look(self) -> None:
        """Everything that is there, before anything is decided: what is not known yet would look like gone."""
        store = self._context.store
        while True:
            try:
                found = {kind: await self._context.kube.list_all(kind) for kind in KINDS}
            except KubeError as exc:
                log.warning("%s", exc)
                await asyncio.sleep(BACKOFF_S[0])
            else:
                break
        for kind, bodies in found.items():
            for body in bodies:
                if store.get(kind, key_of(body)) is None:  # a watch may have brought a newer one
                    store.put(kind, body)
        for kind in self._handlers:
            self._add_all(kind)

    async def resync(self, every_s: float) -> None:
        """Look at everything again from time to time, and when tierd is back: a watch may have lost a change."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._connected.wait(), every_s)
            self._connected.clear()
            try:
                await self._forget_the_gone()
            except KubeError as exc:
                log.warning("%s", exc)
            for kind in self._handlers:
                self._add_all(kind)


def _is_ours(item: Mapping[str, Any]) -> bool:
    """A binding that someone else decided stays."""
    decided_by: str = item["spec"].get("decided_by", "operator")
    return decided_by == "operator"
