# SPDX-License-Identifier: Apache-2.0
"""Small objects for the cluster's tests: made rows in memory nodes, and pods that wait for them."""

from __future__ import annotations

from typing import Any

API = "slacktier.dev/v1alpha1"
ROWS = 60_000
CURVE = [{"cacheRows": 0, "pages": 48}, {"cacheRows": 20_000, "pages": 5}]


def table(name: str = "tiny", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    whole = {
        "source": {"synthetic": {"rows": ROWS, "seed": 1}},
        "family": "v41",
        "model": name,
        "layers": [1, 14],
        **spec,
    }
    return _object("LookupTable", name, whole, namespace)


def pool(
    name: str, *nodes: str, read: dict[str, float] | None = None, cost: float = 1.0, **spec: Any
) -> dict[str, Any]:
    """A pool of memory nodes."""
    members = [{"name": node, "node": node} for node in nodes]
    whole = {
        "tier": "tcp", "members": members, "read": read or {"aUs": 250, "bUs": 0.25}, "costPerGib": cost, **spec
    }  # fmt: skip
    return _object("TierPool", name, whole)


def placement(
    name: str = "tiny", namespace: str = "default", windows: tuple[float, float] = (0.1, 3.5), **spec: Any
) -> dict[str, Any]:
    layers = [
        {"layerId": layer, "windowMs": window, "misses": CURVE} for layer, window in zip((1, 14), windows, strict=True)
    ]
    whole = {"table": "tiny", "stepMs": 11, "ranks": 4, "sloPercent": 20, "cacheRowsPerRank": 20_000, "layers": layers}
    return _object("TablePlacement", name, {**whole, "stabilizationWindowSeconds": 5, **spec}, namespace)


def pod(name: str, placement_name: str = "tiny", namespace: str = "default", **spec: Any) -> dict[str, Any]:
    """A serving pod that does nothing: it stands for one where its engine does not matter."""
    metadata = {"name": name, "namespace": namespace, "labels": {"slacktier.dev/placement": placement_name}}
    container = {"name": "shell", "image": "localhost/busybox:1", "command": ["sleep", "3600"]}
    whole = {
        "schedulingGates": [{"name": "slacktier.dev/tables"}], "terminationGracePeriodSeconds": 1,
        "containers": [container], **spec,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole}


def _object(kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace} if namespace else {"name": name}
    return {"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec}
