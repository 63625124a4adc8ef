# SPDX-License-Identifier: Apache-2.0
"""Placements that the load test switches through tierd's API: a real head, an emulated instance that follows it.

Goal: each block runs on the replica that its arm binds, on a server that is never started anew. Method: two arms,
memory and disk, as bindings of one instance; the instance's own counters say where its rows came from.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tierd_processes import SLACKTIER, Instance, Tierd, make_checkpoint

from slacktier import metrics

TABLES = {1: "t1", 14: "t14"}
POOLS = {
    "disk": {"tier": "nvme", "read": {"a_us": 300, "b_us": 3}},
    "mem": {"tier": "tcp", "read": {"a_us": 200, "b_us": 0.1}, "members": [{"name": "m0"}]},
}


@pytest.fixture
def tierd(tmp_path: Path) -> Iterator[Tierd]:
    """A head with each table on disk and in memory."""
    head = Tierd(tmp_path)
    try:
        checkpoint = make_checkpoint(tmp_path / "checkpoint")
        (tmp_path / "disk").mkdir()
        head.put("pools/disk", {**POOLS["disk"], "members": [{"name": "d0", "path": str(tmp_path / "disk")}]})
        head.put("pools/mem", POOLS["mem"])
        for layer, table in TABLES.items():
            head.put(f"tables/{table}", {"layer_id": layer, "checkpoint": {"path": str(checkpoint)}})
            for pool in POOLS:
                head.put(f"replicas/{table}-{pool}", {"table": table, "pool": pool})
        head.wait_complete(*(f"{table}-{pool}" for table in TABLES.values() for pool in POOLS))
        yield head
    finally:
        head.end()


def binding(pool: str) -> dict[str, Any]:
    return {"slo_pct": 400, "layers": [{"layer_id": at, "replicas": [f"{t}-{pool}"]} for at, t in TABLES.items()]}


def reads_by_tier(instance: Instance) -> dict[str, float]:
    """Decode steps of any layer that read from each tier."""
    page = httpx.get(f"{instance.url}/metrics", timeout=30, trust_env=False).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"{metrics.READ_SECONDS.name}_count":
                tier = sample.labels["tier"]
                found[tier] = found.get(tier, 0) + sample.value
    return found


@pytest.mark.timeout(240)
def test_arms_are_bindings_of_one_instance_switched_between_blocks(tierd: Tierd, tmp_path: Path) -> None:
    tierd.put("bindings/a", binding("disk"))
    instance = Instance(tierd, "a", tmp_path / "checkpoint" / "config.json", TABLES)
    try:
        tierd.wait_in_force("a")
        targets = [
            {"name": pool, "urls": [instance.url], "switch": [{
                "url": f"{tierd.head.url}/v1/bindings/a", "method": "PUT", "body": binding(pool), "is_binding": True,
                "token_file": str(tierd.token_file),
            }]}
            for pool in POOLS
        ]  # fmt: skip
        scenario = tmp_path / "bindings.yaml"
        scenario.write_text(yaml.safe_dump({"title": "two bindings", "blocks": 2, "targets": targets}))
        done = subprocess.run(
            [
                *SLACKTIER, "loadtest", "compare", "--scenario", str(scenario), "--users", "4", "--sessions", "4",
                "--turns", "1", "--output-tokens", "16", "--max-lag-ms", "2000", "--max-cpu", "5", "--json",
                "--out", str(tmp_path / "out"),
            ],
            capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[:3000] + done.stderr[-2000:]
        report, reads = json.loads(done.stdout), reads_by_tier(instance)
        rows = instance.report()
    finally:
        instance.end()
    assert {arm["name"]: arm["completed"] for arm in report["arms"]} == {"disk": 8, "mem": 8}
    assert reads["nvme"] > 0
    assert reads["tcp"] > 0
    assert (rows["mismatched_rows"], rows["failed_steps"]) == (0, 0)
    changes = tierd.head.log.read_text().count('"name": "a"')
    assert changes >= 4, "a change of binding for each switch"
