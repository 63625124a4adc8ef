# SPDX-License-Identifier: Apache-2.0
"""Processes of tierd killed with SIGKILL while streams run through bound instances.

Goal: no wrong row, no lost stream where a replica is left, else a clear error within 15 s; after a restart nothing is
staged twice and what the head says equals the superblocks. One head with a real Ray, a region and a memory node per
layer, two emulated instances that share them; each test kills one thing and waits until all is well again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tierd_processes import Instance, Streams, Tierd, kill, make_checkpoint, wait_until

from slacktier.page import State
from slacktier.region import open_region

pytestmark = pytest.mark.timeout(240)
TABLES = {1: "t1", 14: "t14"}
REPLICAS = ("t1-disk", "t14-disk", "t1-mem", "t14-mem")


class World:
    """What the tests share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.checkpoint = make_checkpoint(directory / "checkpoint")
        self.tierd = Tierd(directory)
        self.instances: list[Instance] = []

    def set_up(self) -> None:
        tierd, disk = self.tierd, self.directory / "disk"
        disk.mkdir()
        tierd.put("pools/disk", {
            "tier": "nvme", "members": [{"name": "d0", "path": str(disk)}], "read": {"a_us": 300, "b_us": 3},
        })  # fmt: skip
        tierd.put("pools/mem", {
            "tier": "tcp", "members": [{"name": "m0"}], "read": {"a_us": 200, "b_us": 0.1}, "cost_per_gib": 4,
        })  # fmt: skip
        for layer, table in TABLES.items():
            tierd.put(f"tables/{table}", {"layer_id": layer, "checkpoint": {"path": str(self.checkpoint)}})
            tierd.put(f"replicas/{table}-disk", {"table": table, "pool": "disk", "members": ["d0"]})
            tierd.put(f"replicas/{table}-mem", {"table": table, "pool": "mem", "members": ["m0"]})
        tierd.wait_complete(*REPLICAS)
        # Memory first, the disk as the replica that is left, whatever decide() would prefer for such small tables.
        for name in ("a", "b"):
            layers = [{"layer_id": layer, "replicas": [f"{t}-mem", f"{t}-disk"]} for layer, t in TABLES.items()]
            tierd.put(f"bindings/{name}", {"slo_pct": 400, "layers": layers})
            self.instances.append(Instance(tierd, name, self.checkpoint / "config.json", TABLES))
        for name in ("a", "b"):
            tierd.wait_in_force(name)

    def end(self) -> None:
        for instance in self.instances:
            instance.end()
        self.tierd.end()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("w"))
    try:
        found.set_up()
        yield found
    finally:
        found.end()


def _streams(world: World) -> list[Streams]:
    streams = [Streams(instance.url, count=16, tokens=32) for instance in world.instances]
    wait_until(lambda: all(each.completed for each in streams), "streams run")
    return streams


def _assert_right(world: World, streams: list[Streams]) -> None:
    for each in streams:
        each.stop()
    assert [each.errors for each in streams] == [[], []]
    for instance in world.instances:
        report = instance.report()
        assert (report["mismatched_rows"], report["failed_steps"]) == (0, 0)
        assert report["rows_checked"] > 0


def _staged_epochs(world: World) -> dict[str, int]:
    return {name: world.tierd.replica(name)["epoch"] for name in REPLICAS}


def _assert_as_superblocks(world: World) -> None:
    """What the head says of each region is what the region says."""
    for table in TABLES.values():
        said = world.tierd.replica(f"{table}-disk")
        with open_region([world.directory / "disk" / f"{table}-disk.region"]) as region:
            sb = region.superblock
        assert sb.state is State.COMPLETE
        assert (said["state"], said["epoch"], said["digest"]) == ("complete", sb.epoch, sb.source_digest.hex())


def test_two_instances_read_one_copy_in_memory(world: World) -> None:
    streams = _streams(world)
    time.sleep(5)
    _assert_right(world, streams)
    assert [instance.tiers() for instance in world.instances] == [{1: "tcp", 14: "tcp"}] * 2
    status = world.tierd.wait_in_force("a")
    assert {layer["tier"] for layer in status["layers"]} == {"tcp"}
    assert all(layer["measured_read_ms"] is not None for layer in status["layers"])
    log = world.tierd.head.log.read_text()
    assert log.count('"audit": "stage"') == 2, "two regions, staged once each"


def test_memory_node_killed_with_a_replica_left_loses_no_stream(world: World) -> None:
    streams = _streams(world)
    old = world.tierd.memory_pid("t14-mem")
    kill(old)
    wait_until(lambda: world.tierd.replica("t14-mem")["restarts"] >= 1, "the memory node is missed")
    world.tierd.wait_complete("t14-mem")
    assert world.tierd.memory_pid("t14-mem") != old
    for name in ("a", "b"):
        world.tierd.wait_in_force(name)
    time.sleep(2)
    _assert_right(world, streams)


def test_head_killed_serving_goes_on_and_nothing_is_staged_again(world: World) -> None:
    streams = _streams(world)
    epochs = _staged_epochs(world)
    nodes = [world.tierd.memory_pid(name) for name in ("t1-mem", "t14-mem")]
    stagings = world.tierd.head.log.read_text().count('"audit": "stage"')
    world.tierd.head.kill()
    time.sleep(3)
    world.tierd.start()
    wait_until(world.tierd.is_ready, "the head is ready again")
    world.tierd.wait_complete(*REPLICAS)
    for name in ("a", "b"):
        world.tierd.wait_in_force(name)
    _assert_right(world, streams)
    assert _staged_epochs(world) == epochs
    assert [world.tierd.memory_pid(name) for name in ("t1-mem", "t14-mem")] == nodes, "memory nodes outlive the head"
    assert world.tierd.head.log.read_text().count('"audit": "stage"') == stagings
    _assert_as_superblocks(world)


def test_ray_head_killed_serving_goes_on_and_ray_comes_back(world: World) -> None:
    streams = _streams(world)
    nodes = [world.tierd.memory_pid(name) for name in ("t1-mem", "t14-mem")]
    stagings = world.tierd.head.log.read_text().count('"audit": "stage"')
    (gcs,) = world.tierd.below("gcs_server")
    kill(gcs)
    wait_until(lambda: not world.tierd.is_ready(), "the head notices")
    wait_until(world.tierd.is_ready, "Ray is back")
    world.tierd.wait_complete(*REPLICAS)
    _assert_right(world, streams)
    assert [world.tierd.memory_pid(name) for name in ("t1-mem", "t14-mem")] == nodes
    assert world.tierd.head.log.read_text().count('"audit": "stage"') == stagings
    _assert_as_superblocks(world)


def test_node_actor_killed_is_started_again(world: World) -> None:
    streams = _streams(world)
    (actor,) = world.tierd.below("ray::NodeActor")
    kill(actor)
    wait_until(lambda: world.tierd.below("ray::NodeActor") not in ([], [actor]), "another actor")
    wait_until(world.tierd.is_ready, "the node answers")
    _assert_right(world, streams)
    world.tierd.wait_complete(*REPLICAS)


def test_staging_task_killed_goes_on_where_it_stopped(world: World) -> None:
    tierd = world.tierd
    tierd.put("tables/big", {"layer_id": 14, "synthetic": {"shape": "v41", "rows": 6_000_000, "seed": 9}})
    tierd.put("replicas/big", {"table": "big", "pool": "disk", "members": ["d0"]})
    streams = _streams(world)
    wait_until(lambda: tierd.replica("big")["state"] == "staging", "staging has begun")
    (task,) = tierd.below("ray::stage") or tierd.below("ray::stage()")
    kill(task)
    tierd.wait_complete("big")
    _assert_right(world, streams)
    tasks = [item["status"] for item in tierd.get("tasks?limit=500")["items"] if item["spec"]["replica"] == "big"]
    assert sorted(task["state"] for task in tasks) == ["failed", "succeeded"]
    assert tierd.replica("big")["restarts"] == 1
    assert tierd.call("DELETE", "replicas/big").status_code == 200
    wait_until(lambda: not (world.directory / "disk" / "big.region").exists(), "evicted")


def test_lone_memory_node_killed_ends_in_a_clear_error_and_comes_back(world: World) -> None:
    tierd = world.tierd
    layers = [{"layer_id": layer, "replicas": [f"{table}-mem"]} for layer, table in TABLES.items()]
    tierd.put("bindings/a", {"slo_pct": 400, "layers": layers})
    tierd.wait_in_force("a")
    instance = world.instances[0]
    streams = Streams(instance.url, count=16, tokens=32)
    wait_until(lambda: streams.completed > 0, "streams run")
    killed_s = time.monotonic()
    kill(tierd.memory_pid("t14-mem"))
    wait_until(lambda: bool(streams.errors), "an error", 15.0)
    told_s, message = streams.errors[0]
    assert told_s - killed_s < 15.0
    assert "layer 14" in message
    tierd.wait_complete("t14-mem")
    wait_until(lambda: httpx.get(f"{instance.url}/readyz", timeout=5, trust_env=False).status_code == 200, "ready")
    tierd.wait_in_force("a")
    failed = len(streams.errors)
    done = streams.completed
    wait_until(lambda: streams.completed > done, "streams run again")
    streams.stop()
    assert instance.report()["mismatched_rows"] == 0
    assert failed >= 1
