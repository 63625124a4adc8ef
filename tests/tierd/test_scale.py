# SPDX-License-Identifier: Apache-2.0
"""A head over 1,000 simulated nodes with 5,000 bindings and 200 tables: times of calls and of a reconcile, and memory.

The full size is SLACKTIER_SCALE=1 (minutes); by default a tenth of it, which holds the same limits.
"""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tierd_support import Head, InProcessDeployment

from slacktier.api import Kind, MemberSpec, TableSpec
from slacktier.tiers import Tier
from slacktier_tierd.deployment.protocol import NodeFacts, RegionAt, TableFound
from slacktier_tierd.node.devices import MemberFound, RegionFound

SHARE = float(os.environ.get("SLACKTIER_SCALE", "0.1"))
NODES, BINDINGS, TABLES = int(1000 * SHARE), int(5000 * SHARE), int(200 * SHARE)
pytestmark = pytest.mark.timeout(600)


class SimulatedDeployment(InProcessDeployment):
    """Nodes whose every region is complete; each call takes one turn of the loop."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.names = ["", *(f"n{at}" for at in range(NODES))]

    async def nodes(self) -> list[NodeFacts]:
        return [NodeFacts(name=name, is_alive=True) for name in self.names]

    async def look_at_members(self, node: str, tier: Tier, members: Sequence[MemberSpec]) -> list[MemberFound]:
        await asyncio.sleep(0)
        return [MemberFound(name=member.name, state="ready", free_bytes=1 << 40) for member in members]

    async def look_at_regions(self, node: str, regions: Sequence[RegionAt]) -> list[RegionFound]:
        await asyncio.sleep(0)
        return [
            RegionFound(
                replica=region.replica, state="complete", table_uuid=region.replica.split("-")[0], layer_id=14, epoch=1,
                digest="ab" * 32,
            )
            for region in regions
        ]  # fmt: skip

    async def read_table(self, node: str, spec: TableSpec) -> TableFound:
        return TableFound(
            table_uuid=spec.model,
            model=spec.model,
            layer_id=14,
            rows=1_000_000,
            row_bytes=264,
            region_bytes=273_076_224,
        )


async def _fill(head: Head) -> None:
    for at in range(NODES):
        head.deployment.agents.setdefault(f"n{at}", head.deployment.agents[""])
    members = [{"name": f"m{at}", "node": f"n{at}", "path": "/d"} for at in range(NODES)]
    await head.put("pools/disk", {"tier": "nvme", "members": members, "read": {"a_us": 100, "b_us": 0.1}})
    for at in range(TABLES):
        synthetic = {"shape": "v41", "rows": 1_000_000, "seed": at}
        await head.put(f"tables/t{at}", {"layer_id": 14, "model": f"t{at}", "synthetic": synthetic})
    for at in range(NODES):
        table = f"t{at % TABLES}"
        await head.put(f"replicas/{table}-n{at}", {"table": table, "pool": "disk", "members": [f"m{at}"]})


def _instance(at: int) -> dict[str, Any]:
    node = at % NODES
    layer = {
        "layer_id": 14,
        "table": f"t{node % TABLES}",
        "window_ms": 9.35,
        "misses": [{"cache_rows": 0, "pages": 600}],
    }
    return {"step_ms": 29.4, "slo_pct": 100.0, "node": f"n{node}", "layers": [layer]}


def _p99_ms(times: list[float]) -> float:
    return 1000 * sorted(times)[int(0.99 * len(times))]


def test_calls_memory_and_reconcile_stay_within_limits(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, SimulatedDeployment(tmp_path))
        await _fill(head)
        await head.reconciler.tick()
        await head.reconciler.tick()
        times: list[float] = []
        for at in range(BINDINGS):
            name, node = f"i{at}", at % NODES
            binding = {"slo_pct": 100, "layers": [{"layer_id": 14, "replicas": [f"t{node % TABLES}-n{node}"]}]}
            for path, body in ((f"instances/{name}", _instance(at)), (f"bindings/{name}", binding)):
                begun = time.perf_counter()
                await head.put(path, body)
                times.append(time.perf_counter() - begun)
        for at in range(0, BINDINGS, 5):
            version = head.service.access(f"i{at}").version
            begun = time.perf_counter()
            await head.put(f"instances/i{at}/report", {"in_force": version, "ready": True, "seconds": 1})
            times.append(time.perf_counter() - begun)
        for path in ("/v1/bindings?limit=500", "/v1/replicas?limit=500", "/v1/instances/i1/access"):
            for _ in range(20):
                begun = time.perf_counter()
                assert (await head.call("GET", path)).status_code == 200
                times.append(time.perf_counter() - begun)
        head.clock_s += 100
        begun = time.perf_counter()
        await head.reconciler.tick()
        reconcile_s = time.perf_counter() - begun
        used_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures = (
            f"{NODES} nodes, {BINDINGS} bindings, {TABLES} tables: p99 {_p99_ms(times):.1f} ms of {len(times)} calls, "
        )
        print(f"\n{figures}reconcile {reconcile_s:.2f} s, {used_mib:.0f} MiB")
        assert head.store.count(Kind.BINDINGS) == BINDINGS
        assert all(head.service.access(f"i{at}").bound for at in range(0, BINDINGS, 7))
        assert _p99_ms(times) < 100
        assert reconcile_s < 2
        assert used_mib < 1024
        head.close()

    asyncio.run(work())
