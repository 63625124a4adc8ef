# SPDX-License-Identifier: Apache-2.0
"""What the cluster says: custom resources, serving pods, nodes. Fed by kopf's watches; nothing here calls out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slacktier.crd_model import GATE, PLACEMENT_LABEL, PLACEMENT_NAMESPACE
from slacktier_operator.names import Key

Object = Mapping[str, Any]
KINDS: Final = ("LookupTable", "TierPool", "TablePlacement", "TableBinding", "Pod", "Node")


def key_of(body: Object) -> Key:
    metadata = body["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


def placement_of(pod: Object) -> Key | None:
    """The placement that a serving pod names, in its own namespace unless it says otherwise."""
    metadata = pod["metadata"]
    name = (metadata.get("labels") or {}).get(PLACEMENT_LABEL)
    if not name:
        return None
    namespace = (metadata.get("annotations") or {}).get(PLACEMENT_NAMESPACE) or metadata["namespace"]
    return Key(namespace, name)


def is_gated(pod: Object) -> bool:
    return any(gate["name"] == GATE for gate in pod["spec"].get("schedulingGates") or ())


def is_over(pod: Object) -> bool:
    """Ended or being deleted: it needs no tables any more."""
    phase = (pod.get("status") or {}).get("phase")
    return bool(pod["metadata"].get("deletionTimestamp")) or phase in ("Succeeded", "Failed")


class Store:
    """Objects by kind and key, and serving pods by placement as well."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Object]] = {kind: {} for kind in KINDS}
        self._pods_of: dict[Key, set[Key]] = {}

    def put(self, kind: str, body: Object) -> bool:
        """Take an object; False if it is the version that was known."""
        key = key_of(body)
        known = self._objects[kind].get(key)
        if known and known["metadata"].get("resourceVersion") == body["metadata"].get("resourceVersion"):
            return False
        self.remove(kind, key)
        self._objects[kind][key] = body
        if kind == "Pod" and (placement := placement_of(body)):
            self._pods_of.setdefault(placement, set()).add(key)
        return True

    def remove(self, kind: str, key: Key) -> Object | None:
        body = self._objects[kind].pop(key, None)
        if body and kind == "Pod" and (placement := placement_of(body)):
            self._pods_of[placement].discard(key)
        return body

    def get(self, kind: str, key: Key) -> Object | None:
        return self._objects[kind].get(key)

    def all(self, kind: str) -> Iterator[Object]:
        return iter(tuple(self._objects[kind].values()))

    def keys(self, kind: str) -> set[Key]:
        return set(self._objects[kind])

    def pods_of(self, placement: Key) -> list[Object]:
        """Serving pods that name this placement and are not over."""
        pods = [self._objects["Pod"][key] for key in sorted(self._pods_of.get(placement, ()))]
        return [pod for pod in pods if not is_over(pod)]
