# SPDX-License-Identifier: Apache-2.0
"""Observed placements for the operator's tests: two layers, a disk on two nodes, a memory node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slacktier.api import LayerFigures, ReplicaState
from slacktier.crd_placement import TablePlacementSpec
from slacktier.tiers import Tier
from slacktier.window_model import ReadModel
from slacktier_operator.names import Key, replica_name
from slacktier_operator.observed import (
    MemberView,
    Observed,
    PodView,
    PoolView,
    ReplicaView,
    ReportView,
    TableView,
)

PLACEMENT = Key("serving", "v41")
GIB = 1 << 30
CURVE = [{"cacheRows": 0, "pages": 600}, {"cacheRows": 500_000, "pages": 90}, {"cacheRows": 1_000_000, "pages": 60}]
SPEC = {
    "table": "v41",
    "stepMs": 29.4,
    "ranks": 4,
    "cacheRowsPerRank": 1_000_000,
    "layers": [
        {"layerId": 1, "windowMs": 0.27, "misses": CURVE},
        {"layerId": 14, "windowMs": 9.35, "misses": CURVE},
    ],
}
TABLES = {
    1: TableView("serving.v41.l1", 384_006_168, 264, 100 * GIB),
    14: TableView("serving.v41.l14", 384_016_682, 264, 100 * GIB),
}
DISK = PoolView(
    "disk", Tier.NVME, (MemberView("a", "node1", True, 500 * GIB), MemberView("b", "node2", True, 500 * GIB)),
    ReadModel(300, 3.05, 0.37, ranks_per_unit=4), cost_per_gib=0.1,
)  # fmt: skip
MEMORY = PoolView(
    "memory", Tier.RDMA, (MemberView("m", "node3", True, 300 * GIB), MemberView("n", "node4", True, 300 * GIB)),
    ReadModel(230), cost_per_gib=4.0,
)  # fmt: skip


def spec_of(**changes: Any) -> TablePlacementSpec:
    return TablePlacementSpec.model_validate({**SPEC, **changes})


def observed(**changes: Any) -> Observed:
    base = Observed(
        key=PLACEMENT, spec=spec_of(), tables=TABLES, pools=(DISK, MEMORY), replicas=(), pods=(), in_force=(),
        changed_s=0.0, now_s=1_000_000.0,
    )  # fmt: skip
    return replace(base, **changes)


def copy_of(
    layer_id: int, pool: PoolView, member: str, state: ReplicaState = ReplicaState.COMPLETE, progress: float = 0.0
) -> ReplicaView:
    node = next(each.node for each in pool.members if each.name == member)
    name = replica_name(PLACEMENT, layer_id, pool.name, member)
    return ReplicaView(name, layer_id, pool.name, member, node, state, progress)


def pod_of(name: str, **changes: Any) -> PodView:
    return replace(PodView(Key("serving", name), f"uid-{name}", gated=True), **changes)


def report_of(windows_us: dict[int, float], *, pages: int = 0, steps: int = 100, step_ms: float = 29.4) -> ReportView:
    layers = {
        layer: LayerFigures(layer_id=layer, window_us=window, pages=pages) for layer, window in windows_us.items()
    }
    return ReportView(ready=True, in_force=1, steps=steps, step_ms=step_ms, layers=layers)
