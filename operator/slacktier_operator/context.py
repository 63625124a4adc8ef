# SPDX-License-Identifier: Apache-2.0
"""What every kind's module works with: clients, what is known, and the queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slacktier.api import Kind
from slacktier.crd_model import CrdStatus, CustomResource
from slacktier_operator.kube import Kube
from slacktier_operator.names import Key
from slacktier_operator.settings import OperatorSettings
from slacktier_operator.store import Store
from slacktier_operator.tierd_client import TierdClient
from slacktier_operator.tierd_state import TierdState
from slacktier_operator.work_queue import WorkQueue


@dataclass
class Context:
    """owners: which objects look at a resource of tierd's, by its kind and name; said: the last Event of each pod."""

    settings: OperatorSettings
    kube: Kube
    tierd: TierdClient
    state: TierdState
    store: Store
    queue: WorkQueue[tuple[str, Key]]
    now_s: Callable[[], float] = time.time
    owners: dict[tuple[Kind, str], set[tuple[str, Key]]] = field(default_factory=dict)
    said: dict[Key, tuple[str, str]] = field(default_factory=dict)

    def own(self, kind: Kind, name: str, ref: tuple[str, Key]) -> None:
        self.owners.setdefault((kind, name), set()).add(ref)

    def disown(self, kind: Kind, name: str, ref: tuple[str, Key]) -> None:
        refs = self.owners.get((kind, name), set())
        refs.discard(ref)
        if not refs:
            self.owners.pop((kind, name), None)

    async def put(self, kind: Kind, name: str, spec: Any, ref: tuple[str, Key]) -> dict[str, Any]:
        """PUT unless tierd is known to have just this; the resource as it is."""
        self.own(kind, name, ref)
        known = self.state.get(kind, name)
        if known is not None and known["spec"] == spec.model_dump(mode="json"):
            return known
        item = await self.tierd.put(kind, name, spec)
        self.state.note(kind, name, item)
        return item

    async def delete(self, kind: Kind, name: str, ref: tuple[str, Key]) -> None:
        if self.state.get(kind, name) is not None:
            await self.tierd.delete(kind, name)
        self.disown(kind, name, ref)

    async def report(
        self, resource: type[CustomResource], key: Key, body: Mapping[str, Any], status: CrdStatus
    ) -> None:  # fmt: skip
        """Write the status if it differs, and an Event where the Ready condition's reason changed."""
        fresh = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        known = dict(body.get("status") or {})
        if fresh == known:
            return
        gone = {name: None for name in known if name not in fresh}
        await self.kube.patch_status(resource, key, {**fresh, **gone})
        before, after = _ready(known), _ready(fresh)
        if after and (not before or before["reason"] != after["reason"]):
            kind = "Normal" if after["status"] == "True" else "Warning"
            await self.kube.event(body, kind, after["reason"], after["message"])


def _ready(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((each for each in status.get("conditions") or () if each["type"] == "Ready"), None)
