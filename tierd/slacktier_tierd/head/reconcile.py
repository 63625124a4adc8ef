# SPDX-License-Identifier: Apache-2.0
"""Makes what is wanted so: looks at regions and memory nodes, judges, acts, and reports in statuses.

A look that fails changes nothing: as long as Ray or a node does not answer, what was known stays in force.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

from slacktier.api import (
    BindingSpec,
    InstanceSpec,
    InstanceStatus,
    Kind,
    PoolSpec,
    ReplicaSpec,
    ReplicaState,
    ReplicaStatus,
    TableSpec,
    TableStatus,
    TaskSpec,
    TaskState,
    TaskStatus,
)
from slacktier.errors import SlackTierError
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier_tierd.deployment.protocol import Deployment, DeploymentError, RegionAt
from slacktier_tierd.head.access import ReplicaPlace
from slacktier_tierd.head.audit import audit
from slacktier_tierd.head.copies import Need, Work, choose_member, judge_memory, judge_region, lost, members_of
from slacktier_tierd.head.placing import PlaceId
from slacktier_tierd.head.service import Service, spec_of
from slacktier_tierd.head.settings import Decider
from slacktier_tierd.head.surroundings import Surroundings, all_of
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.node.devices import region_paths
from slacktier_tierd.node.stage_job import StageJob, StageNews, StageTarget

LOGGER = logging.getLogger("slacktier.tierd")
TASKS_KEPT: Final = 500


class Reconciler:
    """One loop over all that the head is responsible for."""

    def __init__(
        self, service: Service, deployment: Deployment, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._service, self._deployment, self._now_s = service, deployment, now_s
        self._store, self._world = service.store, service.world
        self._work: dict[str, Work] = {}
        self._around = Surroundings(service, deployment, now_s=now_s, on_fault=self._note_fault)
        self._last_fault = ""
        self.jobs: set[asyncio.Task[None]] = set()
        self._tasks_seen: list[str] = []
        self._task_count = 0
        self._decided: dict[str, int] = {}
        self.tick_count = 0
        self.tick_s = 0.0
        self.last_error = ""

    async def run(self) -> None:
        """Until cancelled; a tick that fails is logged once per cause and tried again."""
        while True:
            self._service.changed.clear()
            await self.tick_once()
            try:
                await asyncio.wait_for(self._service.changed.wait(), self._service.settings.tick_s)
            except TimeoutError:
                continue

    async def tick_once(self) -> None:
        begun = time.monotonic()
        try:
            await self.tick()
            self.last_error = ""
        except DeploymentError as exc:
            self._note_error(str(exc))
        except Exception as exc:  # a fault of ours must not end the loop that everything depends on
            self._note_error(f"{type(exc).__name__}: {exc}")
            LOGGER.exception("reconcile failed")
        self.tick_count += 1
        self.tick_s = time.monotonic() - begun

    def _note_error(self, message: str) -> None:
        if message != self.last_error:
            LOGGER.warning("reconcile: %s", message)
        self.last_error = message

    def _note_fault(self, message: str) -> None:
        """One node's or one table's fault: what was known of it stays, the tick goes on."""
        if message != self._last_fault:
            LOGGER.warning("reconcile: %s", message)
        self._last_fault = message

    async def tick(self) -> None:
        """Look at everything that is due, act on what is found, bind whoever can be bound."""
        await self._around.look()
        await self._look_at_replicas()
        self._show_tables()
        self._look_at_instances()

    # Tables

    def _show_tables(self) -> None:
        complete: dict[str, list[str]] = {}
        for name, work in self._work.items():
            spec = spec_of(self._store.get(Kind.REPLICAS, name), ReplicaSpec)
            if spec is not None and work.status.state is ReplicaState.COMPLETE:
                complete.setdefault(spec.table, []).append(work.status.digest)
        for entry in list(self._store.all(Kind.TABLES)):
            if isinstance(entry.status, TableStatus):
                digests = complete.get(entry.name, [])
                changes = {"replicas_complete": len(digests), "digest": digests[0] if digests else entry.status.digest}
                self._store.set_status(Kind.TABLES, entry.name, entry.status.model_copy(update=changes))

    # Replicas

    async def _look_at_replicas(self) -> None:
        wanted = {entry.name: entry for entry in self._store.all(Kind.REPLICAS)}
        for name in self._work.keys() - wanted.keys():
            self._spawn(self._evict(name, self._work.pop(name)))
        for name in wanted:
            self._place(name)
        storage: dict[str, list[str]] = {}
        memory: dict[str, list[str]] = {}
        now = self._now_s()
        for name, work in self._work.items():
            if work.is_running or not work.members or work.node not in self._around.alive:
                continue
            if now - work.looked_s >= self._service.settings.look_s or work.status.state is not ReplicaState.COMPLETE:
                kind = memory if self._tier(name) in REMOTE_TIERS else storage
                kind.setdefault(work.node, []).append(name)
        await all_of(
            [self._look_at_regions(node, names) for node, names in storage.items()]
            + [self._look_at_memory(node, names) for node, names in memory.items()],
            self._note_fault,
        )
        self._start_stagings()

    def _spec(self, name: str) -> ReplicaSpec | None:
        return spec_of(self._store.get(Kind.REPLICAS, name), ReplicaSpec)

    def _tier(self, name: str) -> Tier | None:
        spec = self._spec(name)
        pool = self._world.pools.get(spec.pool) if spec else None
        return pool.tier if pool else None

    def _place(self, name: str) -> None:
        """Choose a replica's members where the spec leaves that to us; anew when its node is gone."""
        entry, spec = self._store.get(Kind.REPLICAS, name), self._spec(name)
        pool = self._world.pools.get(spec.pool) if spec else None
        if entry is None or spec is None or pool is None:
            return
        work = self._work.setdefault(name, Work())
        if work.generation != entry.generation:
            work.generation, work.failures, work.retry_s, work.looked_s = entry.generation, 0, 0.0, -1e18
        if not work.members or not spec.members:
            work.members = members_of(spec, pool, self._assigned(name, spec, pool, work))
        if work.members and work.node not in self._around.alive:
            if work.status.state not in (ReplicaState.LOST, ReplicaState.PENDING):
                audit("replica-lost", by=None, kind="replicas", name=name, outcome="lost", node=work.node)
            self._show(name, lost(work.status, work.node))
        elif not work.members:
            message = f"pool {spec.pool} has no member with room that is ready"
            self._show(name, ReplicaStatus(state=ReplicaState.PENDING, tier=pool.tier, message=message))

    def _assigned(self, name: str, spec: ReplicaSpec, pool: PoolSpec, work: Work) -> str | None:
        fact = f"assigned:{name}"
        assigned = self._store.fact(fact) if not work.members else work.members[0].name
        if spec.members:
            return None
        by_name = {member.name: member for member in pool.members}
        if assigned in by_name and (by_name[assigned].node in self._around.alive or work.is_running):
            return assigned
        table = self._around.tables.get(spec.table)
        if table is None:
            return assigned
        used = self._members_with(spec, besides=name)
        chosen = choose_member(
            spec.pool, pool, self._world.members, used=used, byte_count=table.region_bytes, alive=self._around.alive
        )
        if chosen is not None and chosen != assigned:
            self._store.set_fact(fact, chosen)
            work.restarts += bool(assigned)
            work.looked_s, work.region, work.memory = -1e18, None, None
        return chosen or assigned

    def _members_with(self, spec: ReplicaSpec, *, besides: str) -> set[str]:
        """Members of the pool that hold, or are to hold, a copy of the same table."""
        found: set[str] = set()
        for name, work in self._work.items():
            other = self._spec(name)
            if name != besides and other is not None and (other.table, other.pool) == (spec.table, spec.pool):
                found.update(member.name for member in work.members)
        return found

    async def _look_at_regions(self, node: str, names: list[str]) -> None:
        regions = [RegionAt(replica=name, paths=region_paths(name, self._work[name].members)) for name in names]
        for found in await self._deployment.look_at_regions(node, regions):
            work, spec = self._work.get(found.replica), self._spec(found.replica)
            if work is None or spec is None or work.is_running:
                continue
            work.region, work.looked_s = found, self._now_s()
            self._judge_storage(found.replica, work, spec)

    def _judge_storage(self, name: str, work: Work, spec: ReplicaSpec) -> None:
        table, found = self._around.tables.get(spec.table), work.region
        if table is None or found is None:
            self._show(name, self._status(name, work, ReplicaState.PENDING, "the table's source has not been read yet"))
            return
        if self._restage_due(name, spec, found.epoch):
            return
        need, why = judge_region(
            found, table_uuid=table.table_uuid, digest=self._digest(spec.table, name),
            may_format=all(member.format for member in work.members),
        )  # fmt: skip
        if need is Need.NOTHING:
            self._complete(name, work, digest=found.digest, epoch=found.epoch)
        elif need is Need.WAIT:
            self._show(name, self._status(name, work, ReplicaState.FAILED, why))
        elif self._now_s() < work.retry_s:
            self._show(name, self._status(name, work, ReplicaState.FAILED, work.status.message))
        else:
            self._show(name, self._status(name, work, ReplicaState.PENDING, ""))

    def _restage_due(self, name: str, spec: ReplicaSpec, epoch: int) -> bool:
        """Whether a raised `restage` has not been acted on: the region's epoch is still what it was."""
        if not spec.restage:
            return False
        count, _, before = (self._store.fact(f"restage:{name}") or "0:0").partition(":")
        if int(count) < spec.restage:
            self._store.set_fact(f"restage:{name}", f"{spec.restage}:{epoch}")
            return True
        return epoch <= int(before)

    def _digest(self, table: str, besides: str) -> str:
        """Of the table's complete copies but this one."""
        for copy in self._world.copies_of(table):
            work = self._work.get(copy.name)
            if copy.name != besides and work is not None and work.status.state is ReplicaState.COMPLETE:
                return work.status.digest
        return ""

    def _status(self, name: str, work: Work, state: ReplicaState, message: str) -> ReplicaStatus:
        spec = self._spec(name)
        table = self._around.tables.get(spec.table) if spec else None
        return work.status.model_copy(update={
            "observed_generation": work.generation, "state": state, "tier": self._tier(name), "node": work.node,
            "members": tuple(member.name for member in work.members), "message": message[:4096],
            "region_bytes": table.region_bytes if table else 0, "restarts": work.restarts,
        })  # fmt: skip

    def _show(self, name: str, status: ReplicaStatus) -> None:
        work, spec = self._work[name], self._spec(name)
        if spec is None:
            return
        work.status = status
        work.table_uuid = self._around.tables[spec.table].table_uuid if spec.table in self._around.tables else ""
        member = work.members[0].name if work.members else ""
        self._service.set_copy(name, PlaceId(spec.pool, member), status)
        if status.state is not ReplicaState.COMPLETE:
            self._service.set_place(name, None)

    def _complete(
        self, name: str, work: Work, *, digest: str, epoch: int, memory: MemoryNodeStatus | None = None
    ) -> None:
        spec = self._spec(name)
        pool = self._world.pools.get(spec.pool) if spec else None
        table = self._around.tables.get(spec.table) if spec else None
        if spec is None or pool is None or table is None:
            return
        status = self._status(name, work, ReplicaState.COMPLETE, "").model_copy(
            update={"progress": 1.0, "staged_bytes": table.region_bytes, "digest": digest, "epoch": epoch, "task": None}
        )
        work.failures, work.retry_s = 0, 0.0
        self._show(name, status)
        place = ReplicaPlace(
            name, spec.table, table.layer_id, table.table_uuid, table.rows, pool, status,
            paths=() if memory else region_paths(name, work.members),
            host=memory.host if memory else "", port=memory.port if memory else 0,
            token=self._token(name) if memory else "",
        )  # fmt: skip
        self._service.set_place(name, place)

    # Memory nodes

    def _token(self, name: str) -> str:
        return self._store.secret(f"token:{name}", lambda: secrets.token_hex(32))

    async def _look_at_memory(self, node: str, names: list[str]) -> None:
        for found in await self._deployment.memory_nodes(node, names):
            work, spec = self._work.get(found.name), self._spec(found.name)
            table = self._around.tables.get(spec.table) if spec else None
            if work is None or spec is None or table is None:
                continue
            work.memory, work.looked_s = found, self._now_s()
            need, why = judge_memory(found, table_uuid=table.table_uuid, digest=self._digest(spec.table, found.name))
            if need is Need.NOTHING:
                shown = found.model_copy(update={"host": self._host(work) or found.host})
                self._complete(found.name, work, digest=found.digest, epoch=found.epoch, memory=shown)
            elif need is Need.START:
                await self._start_memory(found.name, work, spec)
            elif why:
                await self._memory_failed(found.name, work, why)
            else:
                self._show_loading(found, work)

    def _host(self, work: Work) -> str:
        """Where peers reach it: as its member says, else as the head is told for its own node."""
        named = work.members[0].host
        return named or (self._service.settings.advertise if not work.node else "")

    def _listen_host(self, work: Work) -> str:
        """What a memory node binds to: its member's host, else its node's address; on the head's own, --advertise."""
        of_node = self._around.addresses.get(work.node) if work.node else None
        return work.members[0].host or of_node or self._service.settings.advertise

    async def _start_memory(self, name: str, work: Work, spec: ReplicaSpec) -> None:
        if work.status.state is ReplicaState.COMPLETE:
            work.restarts += 1
            audit("memory-node-gone", by=None, kind="replicas", name=name, outcome="started again", node=work.node)
        if self._now_s() < work.retry_s:
            self._show(name, self._status(name, work, ReplicaState.FAILED, work.status.message))
            return
        self._show(name, self._status(name, work, ReplicaState.STAGING, "").model_copy(update={"progress": 0.0}))
        table = spec_of(self._store.get(Kind.TABLES, spec.table), TableSpec)
        pool = self._world.pools[spec.pool]
        member, region = work.members[0], self._region_on(spec.table, work.node)
        config = MemoryNodeConfig(
            name=name, run_dir="", tier=pool.tier, host=self._listen_host(work),
            port=member.port, token=self._token(name), hugepages=member.hugepages,
            paths=region, table=None if region else table, lease_s=self._service.settings.lease_s,
        )  # fmt: skip
        try:
            await self._deployment.start_memory_node(work.node, config)
        except SlackTierError as exc:
            work.failed(self._now_s())
            self._show(name, self._status(name, work, ReplicaState.FAILED, str(exc)))

    def _region_on(self, table: str, node: str) -> tuple[str, ...]:
        """Paths of a complete region of the table on this node: loading it is faster than the checkpoint."""
        for copy in self._world.copies_of(table):
            work = self._work.get(copy.name)
            is_here = work is not None and work.node == node and work.status.state is ReplicaState.COMPLETE
            if work is not None and is_here and self._tier(copy.name) not in REMOTE_TIERS:
                return region_paths(copy.name, work.members)
        return ()

    async def _memory_failed(self, name: str, work: Work, why: str) -> None:
        self._show(name, self._status(name, work, ReplicaState.FAILED, why))
        work.failed(self._now_s())
        await self._deployment.stop_memory_node(work.node, name)

    def _show_loading(self, found: MemoryNodeStatus, work: Work) -> None:
        share = found.done_bytes / found.total_bytes if found.total_bytes else 0.0
        status = self._status(found.name, work, ReplicaState.STAGING, "")
        self._show(found.name, status.model_copy(update={"progress": share, "staged_bytes": found.done_bytes}))

    # Staging

    def _start_stagings(self) -> None:
        """One job per node and table: its replicas are written side by side from one read of the source."""
        groups: dict[tuple[str, str], list[str]] = {}
        for name, work in self._work.items():
            spec = self._spec(name)
            is_storage = self._tier(name) not in REMOTE_TIERS
            if spec is None or not is_storage or work.is_running or work.region is None or not work.members:
                continue
            is_due = work.status.state is ReplicaState.PENDING or (
                spec.restage and self._restage_due(name, spec, work.region.epoch)
            )
            if (
                is_due
                and spec.table in self._around.tables
                and work.node in self._around.alive
                and self._now_s() >= work.retry_s
            ):
                groups.setdefault((work.node, spec.table), []).append(name)
        for (node, table), names in groups.items():
            for name in names:
                self._work[name].is_running = True
            self._spawn(self._stage(node, table, sorted(names)))

    async def _stage(self, node: str, table: str, names: list[str]) -> None:
        spec = spec_of(self._store.get(Kind.TABLES, table), TableSpec)
        tasks = {name: self._new_task(name, node) for name in names}
        try:
            if spec is None:
                return
            job = StageJob(table=spec, targets=tuple(self._target(name) for name in names))
            async for news in self._deployment.stage(node, job):
                if news.replica in self._work:
                    self._show_staging(news, tasks[news.replica], node)
            self._end_tasks(tasks, node, "the staging task ended without a word")
        except SlackTierError as exc:
            hint = f" ({exc.hint})" if exc.hint else ""
            self._end_tasks(tasks, node, f"{exc}{hint}")
        finally:
            for name in names:
                if name in self._work:
                    self._work[name].is_running = False
                    self._work[name].looked_s = -1e18
            self._service.changed.set()

    def _target(self, name: str) -> StageTarget:
        work, spec = self._work[name], self._spec(name)
        found = work.region
        restage = bool(spec and found and spec.restage and self._restage_due(name, spec, found.epoch))
        return StageTarget(
            replica=name, paths=region_paths(name, work.members), restage=restage,
            may_format=all(member.format for member in work.members),
        )  # fmt: skip

    def _new_task(self, replica: str, node: str) -> str:
        self._task_count += 1
        name = f"stage-{self._store.version}-{self._task_count}"
        begun = TaskStatus(state=TaskState.RUNNING, started_s=self._service.now_s())
        self._store.put_observed(Kind.TASKS, name, TaskSpec(action="stage", replica=replica, node=node), begun)
        self._tasks_seen.append(name)
        while len(self._tasks_seen) > TASKS_KEPT:
            self._store.delete(Kind.TASKS, self._tasks_seen.pop(0))
        return name

    def _task_status(self, task: str) -> TaskStatus:
        entry = self._store.get(Kind.TASKS, task)
        return entry.status if entry is not None and isinstance(entry.status, TaskStatus) else TaskStatus()

    def _show_staging(self, news: StageNews, task: str, node: str) -> None:
        before, work = self._task_status(task), self._work[news.replica]
        if not news.is_over:
            shown = before.model_copy(update={
                "phase": news.phase, "done_bytes": news.done_bytes, "total_bytes": news.total_bytes,
                "bytes_read": news.bytes_read,
            })  # fmt: skip
            self._store.set_status(Kind.TASKS, task, shown)
            self._show(news.replica, self._staging(news, task, work))
            return
        self._end_task(task, news.fault, news)
        if news.fault:
            work.failed(self._now_s())
            self._show(news.replica, self._status(news.replica, work, ReplicaState.FAILED, news.fault))
            return
        work.is_running = False
        self._complete(news.replica, work, digest=news.digest, epoch=news.epoch)
        audit("stage", by=None, kind="replicas", name=news.replica, outcome=news.outcome, node=node,
              bytes_written=news.bytes_written)  # fmt: skip

    def _staging(self, news: StageNews, task: str, work: Work) -> ReplicaStatus:
        """Writing and verifying count half each."""
        share = news.done_bytes / news.total_bytes if news.total_bytes else 0.0
        done = {"stage": share / 2, "verify": 0.5 + share / 2}.get(news.phase, 0.0)
        status = self._status(news.replica, work, ReplicaState.STAGING, "")
        staged = int(status.region_bytes * min(1.0, 2 * done))
        return status.model_copy(update={"progress": done, "task": task, "staged_bytes": staged})

    def _end_task(self, task: str, fault: str, news: StageNews | None) -> None:
        changes = {
            "state": TaskState.FAILED if fault else TaskState.SUCCEEDED, "message": fault[:4096],
            "ended_s": self._service.now_s(),
        }  # fmt: skip
        if news is not None and not fault:
            changes |= {"outcome": news.outcome, "bytes_read": news.bytes_read, "bytes_written": news.bytes_written}
        self._store.set_status(Kind.TASKS, task, self._task_status(task).model_copy(update=changes))

    def _end_tasks(self, tasks: dict[str, str], node: str, fault: str) -> None:
        """Those that have not ended: the task that ran them is gone; the next one goes on where it stopped."""
        for name, task in tasks.items():
            if self._task_status(task).state is TaskState.RUNNING:
                self._end_task(task, fault, None)
                work = self._work.get(name)
                if work is not None:
                    work.restarts += 1
                    work.failed(self._now_s())
                    self._show(name, self._status(name, work, ReplicaState.FAILED, fault))
                audit("stage", by=None, kind="replicas", name=name, outcome="failed", node=node, why=fault[:200])

    async def _evict(self, name: str, work: Work) -> None:
        """A replica that nobody wants any more: its bytes go, and what was remembered of it."""
        try:
            if work.memory is not None:
                await self._deployment.stop_memory_node(work.node, name)
            elif work.members and work.table_uuid:
                region = RegionAt(replica=name, paths=region_paths(name, work.members))
                await self._deployment.evict(work.node, region, work.table_uuid)
            outcome = "evicted"
        except SlackTierError as exc:
            outcome = f"left behind: {exc}"
        for fact in ("token", "assigned", "restage"):
            self._store.set_fact(f"{fact}:{name}", None)
        audit("evict", by=None, kind="replicas", name=name, outcome=outcome, node=work.node)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.jobs.add(task)
        task.add_done_callback(self._job_done)

    def forget(self, name: str) -> None:
        """Look at a replica anew, as after a restart of the head."""
        self._work.pop(name, None)

    def _job_done(self, task: asyncio.Task[None]) -> None:
        self.jobs.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOGGER.error("a job failed", exc_info=task.exception())

    # Instances

    def _look_at_instances(self) -> None:
        now = self._service.now_s()
        for entry in list(self._store.all(Kind.INSTANCES)):
            spec, status = entry.spec, entry.status
            if not isinstance(spec, InstanceSpec) or not isinstance(status, InstanceStatus):
                continue
            if spec.ttl_s and now - max(status.seen_s, entry.created_s) > spec.ttl_s:
                self._service.delete(Kind.INSTANCES, entry.name, None)
                continue
            if self._service.settings.decider is Decider.TIERD and self._is_decision_due(entry.name, entry.generation):
                self._service.decide(entry.name)
                if entry.name in self._world.bindings:
                    self._decided[entry.name] = entry.generation

    def _is_decision_due(self, name: str, generation: int) -> bool:
        """A spec that has not been decided on, or a binding whose every first choice is not what it was."""
        binding = spec_of(self._store.get(Kind.BINDINGS, name), BindingSpec)
        if binding is None:
            return True
        if binding.decided_by != "tierd":
            return False
        return self._decided.setdefault(name, generation) != generation

    async def close(self) -> None:
        """Stop what runs here; stagings go on where they stopped when the next head looks."""
        for task in list(self.jobs):
            task.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
