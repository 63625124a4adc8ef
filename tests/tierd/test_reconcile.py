# SPDX-License-Identifier: Apache-2.0
"""What the head does about replicas: stages once, trusts superblocks, re-places what a dead node held."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tierd_support import Head, InProcessDeployment, instance_body, table_body

from slacktier.api import ConditionStatus, InstanceStatus, Kind, PoolStatus, ReplicaState, TableStatus, TaskStatus
from slacktier.region import open_region
from slacktier_tierd.deployment.protocol import DeploymentError
from slacktier_tierd.head.settings import Decider


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def _region(directory: Path, replica: str, member: str = "d0", pool: str = "nvme") -> Path:
    return directory / pool / member / f"{replica}.region"


async def _complete(head: Head, *names: str) -> None:
    await head.tick(lambda: all(head.replica(name).state is ReplicaState.COMPLETE for name in names))


def test_two_replicas_are_staged_side_by_side_from_one_read(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0", "d1"])
        await head.put("tables/t14", table_body(rows=40_000))
        for name in ("a", "b"):
            await head.put(f"replicas/{name}", {"table": "t14", "pool": "nvme"})
        await _complete(head, "a", "b")
        await head.tick()
        assert head.deployment.staged == [("a", "b")]
        assert {head.replica("a").members, head.replica("b").members} == {("d0",), ("d1",)}
        ended = [news for news in head.deployment.news if news.is_over]
        assert max(news.bytes_read for news in ended) == 40_000 * 264
        tasks = [entry.status for entry in head.store.all(Kind.TASKS)]
        assert all(isinstance(task, TaskStatus) and task.state == "succeeded" for task in tasks)
        table = head.store.get(Kind.TABLES, "t14")
        assert table is not None
        assert isinstance(table.status, TableStatus)
        assert (table.status.replicas_complete, table.status.digest) == (2, head.replica("a").digest)
        head.close()

    run(work())


def test_restart_stages_nothing_and_knows_all_from_superblocks(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
        await _complete(head, "a")
        before = head.replica("a")
        head.close()
        again = Head(tmp_path)
        await _complete(again, "a")
        assert again.deployment.staged == []
        assert again.replica("a").digest == before.digest
        again.close()

    run(work())


def test_lost_state_is_found_again_when_it_is_put_again(tmp_path: Path) -> None:
    async def work() -> None:
        for at in range(2):
            head = Head(tmp_path)
            await head.pool("nvme", tmp_path, ["d0"])
            await head.put("tables/t14", table_body())
            await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
            await _complete(head, "a")
            assert len(head.deployment.staged) == (at == 0)
            head.close()
            (tmp_path / "state.sqlite").unlink()

    run(work())


def test_file_that_is_not_ours_is_left_alone_unless_the_member_says_format(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        precious = _region(tmp_path, "a")
        precious.write_bytes(b"precious" * 2000)
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme", "members": ["d0"]})
        await head.tick(count=4)
        assert head.replica("a").state is ReplicaState.FAILED
        assert "format: true" in head.replica("a").message
        assert precious.read_bytes() == b"precious" * 2000
        member = {"name": "d0", "path": str(precious.parent), "format": True}
        await head.put("pools/nvme", {"tier": "nvme", "members": [member]})
        await head.put("replicas/a", {"table": "t14", "pool": "nvme", "members": ["d0"], "restage": 1})
        head.reconciler.forget("a")
        await _complete(head, "a")
        head.close()

    run(work())


def test_same_shape_with_other_rows_is_never_served(tmp_path: Path) -> None:
    async def work() -> None:
        checkpoint = {"layer_id": 14, "model": "m", "synthetic": {"shape": "v41", "rows": 2000, "seed": 3}}
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0", "d1"])
        await head.put("tables/t14", checkpoint)
        await head.put("replicas/a", {"table": "t14", "pool": "nvme", "members": ["d0"]})
        await _complete(head, "a")
        # Another staging of the same table, one byte of whose digest differs: as if its source had been replaced.
        other = _region(tmp_path, "b", "d1")
        raw = bytearray(_region(tmp_path, "a").read_bytes())
        with open_region([_region(tmp_path, "a")]) as region:
            sb = region.superblock
        from dataclasses import replace

        from slacktier.page import encode_superblock

        page = encode_superblock(replace(sb, source_digest=bytes(32)))
        raw[: 2 * len(page)] = page * 2
        other.write_bytes(raw)
        await head.put("replicas/b", {"table": "t14", "pool": "nvme", "members": ["d1"]})
        await head.tick(count=3)
        assert head.replica("b").state is ReplicaState.FAILED
        assert "other rows" in head.replica("b").message
        head.close()

    run(work())


def test_what_a_dead_node_held_is_staged_elsewhere(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, InProcessDeployment(tmp_path, ["", "n1", "n2"]))
        await head.pool("nvme", tmp_path, ["n1/d1", "n2/d2"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/free", {"table": "t14", "pool": "nvme"})
        await _complete(head, "free")
        (held,) = head.replica("free").members
        node = "n1" if held == "d1" else "n2"
        head.deployment.dead.add(node)
        await head.tick(
            lambda: head.replica("free").state is ReplicaState.COMPLETE and head.replica("free").node != node
        )
        assert head.replica("free").restarts == 1
        head.deployment.dead.clear()
        await head.put("replicas/fixed", {"table": "t14", "pool": "nvme", "members": [held]})
        await _complete(head, "fixed")
        head.deployment.dead.add(node)
        await head.tick(count=3)
        assert head.replica("fixed").state is ReplicaState.LOST
        head.deployment.dead.clear()
        staged = len(head.deployment.staged)
        await _complete(head, "fixed")
        assert len(head.deployment.staged) == staged
        head.close()

    run(work())


def test_memory_node_that_is_gone_is_started_again(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.put("pools/mem", {"tier": "tcp", "members": [{"name": "m0"}], "read": {"a_us": 100}})
        await head.put("tables/t14", table_body())
        await head.put("replicas/m", {"table": "t14", "pool": "mem"})
        await _complete(head, "m")
        await head.put("instances/alice", instance_body())
        await head.tick(count=2)
        access = (await head.call("GET", "/v1/instances/alice/access")).json()
        assert access["bound"], access
        assert access["layers"][0]["replicas"][0]["port"] == 4000
        head.deployment.memory.clear()
        await _complete(head, "m")
        await head.tick(lambda: head.replica("m").restarts == 1)
        await _complete(head, "m")
        head.close()

    run(work())


def test_a_memory_node_is_told_by_the_address_of_its_own_node(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, InProcessDeployment(tmp_path, ("", "n1")))
        members = [{"name": "m0"}, {"name": "m1", "node": "n1"}, {"name": "m2", "node": "n1", "host": "192.0.2.7"}]
        await head.put("pools/mem", {"tier": "tcp", "members": members, "read": {"a_us": 100}})
        await head.put("tables/t14", table_body())
        for member in ("m0", "m1", "m2"):
            await head.put(f"replicas/{member}", {"table": "t14", "pool": "mem", "members": [member]})
        await _complete(head, "m0", "m1", "m2")
        hosts = {name: status.host for name, status in head.deployment.memory.items()}
        assert hosts == {"m0": "127.0.0.1", "m1": "10.0.0.1", "m2": "192.0.2.7"}
        head.close()

    run(work())


def test_source_that_only_another_node_sees_is_read_there_before_any_copy_is_wanted(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, InProcessDeployment(tmp_path, ("", "n1")))

        def unseen(_: dict[str, Any]) -> dict[str, Any]:
            raise DeploymentError("no such file or directory")

        head.deployment.agents[""].read_table = unseen  # type: ignore[method-assign]
        await head.put("tables/t14", table_body(rows=3000))
        await head.tick()
        table = head.store.get(Kind.TABLES, "t14")
        assert table is not None
        assert isinstance(table.status, TableStatus)
        assert table.status.rows == 3000
        head.close()

    run(work())


def test_nodes_that_do_not_answer_change_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
        await _complete(head, "a")
        await head.tick(count=2)
        version = head.store.version
        head.deployment.agents[""].look_at_regions = head.deployment.agents[""].look_at_members = _away  # type: ignore[method-assign,assignment]
        await head.tick(count=3)
        assert head.replica("a").state is ReplicaState.COMPLETE
        assert head.store.version == version
        head.close()

    def _away(*_: object) -> list[Any]:
        raise DeploymentError("away")

    run(work())


def test_refused_instance_says_why_and_is_bound_when_there_is_room(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"], read={"a_us": 50_000})
        await head.put("tables/t14", table_body())
        await head.tick(count=2)
        await head.put("instances/alice", instance_body())
        await head.tick()
        entry = head.store.get(Kind.INSTANCES, "alice")
        assert entry is not None
        assert isinstance(entry.status, InstanceStatus)
        (said,) = entry.status.conditions
        assert (said.type, said.status, said.reason) == ("PlanAccepted", ConditionStatus.FALSE, "DoesNotFit")
        await head.put("measurements/d0", {"pool": "nvme", "member": "d0", "read": {"a_us": 100, "b_us": 3}})
        await head.tick(lambda: "alice" in head.service.world.bindings)
        await head.tick(lambda: head.service.access("alice").bound)
        head.close()

    run(work())


def test_silent_instance_is_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("instances/alice", instance_body(ttl_s=60))
        await head.tick(lambda: "alice" in head.service.world.bindings)
        await head.tick(count=3, seconds=25.0)
        assert head.store.get(Kind.INSTANCES, "alice") is None
        assert head.store.get(Kind.BINDINGS, "alice") is None
        head.close()

    run(work())


def test_instance_that_waits_to_be_bound_is_not_silent(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path, decider=Decider.OPERATOR)
        await head.put("tables/t14", table_body())
        await head.put("instances/alice", instance_body(ttl_s=60))
        for _ in range(4):
            await head.tick(seconds=25.0)
            version = head.service.access("alice").version
            assert not (await head.service.wait_access("alice", version, 0.01)).bound
        assert head.store.get(Kind.INSTANCES, "alice") is not None
        head.close()

    run(work())


def test_instance_that_comes_to_a_node_after_its_binding_is_told_what_that_node_has(tmp_path: Path) -> None:
    """A pod is bound before it is scheduled: its node is known last."""

    async def work() -> None:
        head = Head(tmp_path, InProcessDeployment(tmp_path, ("", "n1")), decider=Decider.OPERATOR)
        await head.pool("nvme", tmp_path, ["n1/d0"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
        await _complete(head, "a")
        await head.put("instances/alice", instance_body())
        layer = {"layer_id": 14, "replicas": ["a"]}
        await head.put("bindings/alice", {"layers": [layer], "decided_by": "operator"})
        early = head.service.access("alice")
        assert "is on node 'n1'" in early.message
        asked = asyncio.ensure_future(head.service.wait_access("alice", early.version, 10.0))
        await asyncio.sleep(0)
        await head.put("instances/alice", instance_body(node="n1"))
        assert (await asked).bound
        head.close()

    run(work())


def test_member_that_is_missing_is_told_in_the_pools_status(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        members = [{"name": "gone", "path": str(tmp_path / "gone")}, {"name": "far", "node": "n9", "path": "/d"}]
        await head.put("pools/nvme", {"tier": "nvme", "members": members})
        await head.tick()
        entry = head.store.get(Kind.POOLS, "nvme")
        assert entry is not None
        assert isinstance(entry.status, PoolStatus)
        assert [member.state for member in entry.status.members] == ["missing", "missing"]
        head.close()

    run(work())


@pytest.mark.parametrize("kind", ["replicas", "tables", "pools"])
def test_what_is_in_use_is_not_deleted(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("instances/alice", instance_body())
        await head.tick(lambda: "alice" in head.service.world.bindings)
        name = {"replicas": "t14.nvme.d0", "tables": "t14", "pools": "nvme"}[kind]
        answer = await head.call("DELETE", f"/v1/{kind}/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
        head.close()

    run(work())


def test_replica_that_nobody_wants_is_evicted(tmp_path: Path) -> None:
    async def work() -> None:
        head = Head(tmp_path)
        await head.pool("nvme", tmp_path, ["d0"])
        await head.put("tables/t14", table_body())
        await head.put("replicas/a", {"table": "t14", "pool": "nvme"})
        await _complete(head, "a")
        rows = np.fromfile(_region(tmp_path, "a"), np.uint8)
        assert rows.size
        assert (await head.call("DELETE", "/v1/replicas/a")).json() == {"deleted": True}
        assert (await head.call("DELETE", "/v1/replicas/a")).json() == {"deleted": False}
        await head.tick(lambda: not _region(tmp_path, "a").exists())
        head.close()

    run(work())


def test_a_table_made_anew_under_its_old_name_is_read_anew(tmp_path: Path) -> None:
    """Deleted and put again between two looks, with other rows: what was known of the old one says nothing of it."""

    async def work() -> None:
        head = Head(tmp_path)
        await head.put("tables/t14", table_body(rows=2000))
        await head.tick(count=2)
        assert (await head.call("DELETE", "/v1/tables/t14")).status_code == 200
        await head.put("tables/t14", table_body(rows=3000))
        await head.tick(count=2)
        table = head.store.get(Kind.TABLES, "t14")
        assert table is not None
        assert isinstance(table.status, TableStatus)
        assert table.status.rows == 3000
        head.close()

    run(work())
