# SPDX-License-Identifier: Apache-2.0
"""What replicas stand on: which nodes are alive, what room pools' members have, what sources' headers say.

A look that fails changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from slacktier.api import Kind, MemberStatus, PoolSpec, PoolStatus, ReplicaSpec, TableSpec, TableStatus
from slacktier.errors import SlackTierError
from slacktier_tierd.deployment.protocol import Deployment, DeploymentError, TableFound
from slacktier_tierd.head.copies import members_of
from slacktier_tierd.head.placing import MemberFacts, PlaceId, TableFacts
from slacktier_tierd.head.service import Service, condition, spec_of

_CALLS_AT_ONCE: Final = 64
T = TypeVar("T")


async def all_of(calls: Sequence[Awaitable[T]], on_fault: Callable[[str], None]) -> None:
    """Await all calls, some at a time; those that fail are told and otherwise change nothing."""
    limit = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def one(call: Awaitable[T]) -> None:
        async with limit:
            try:
                await call
            except SlackTierError as exc:
                on_fault(str(exc))

    await asyncio.gather(*(one(call) for call in calls))


class Surroundings:
    """alive: names of the nodes that answer; addresses: theirs; tables: by name, what their sources' headers say."""

    def __init__(
        self, service: Service, deployment: Deployment, *, now_s: Callable[[], float], on_fault: Callable[[str], None]
    ) -> None:
        self._service, self._deployment, self._now_s, self._on_fault = service, deployment, now_s, on_fault
        self._store, self._world = service.store, service.world
        self.alive: frozenset[str] = frozenset()
        self.addresses: dict[str, str] = {}
        self.tables: dict[str, TableFound] = {}
        self._table_retry: dict[str, float] = {}
        self._members_looked: dict[str, tuple[int, float]] = {}

    async def look(self) -> None:
        """At nodes, and at whatever else is due; raises DeploymentError where no node can be asked for."""
        nodes = await self._deployment.nodes()
        self.alive = frozenset(node.name for node in nodes if node.is_alive)
        self.addresses = {node.name: node.address for node in nodes if node.is_alive}
        await self._look_at_pools()
        await self._read_tables()

    async def _look_at_pools(self) -> None:
        now = self._now_s()
        due = []
        for entry in self._store.all(Kind.POOLS):
            generation, looked = self._members_looked.get(entry.name, (0, -1e18))
            if generation != entry.generation or now - looked >= self._service.settings.look_s:
                due.append(entry.name)
                self._members_looked[entry.name] = (entry.generation, now)
        await all_of([self._look_at_pool(name) for name in due], self._on_fault)

    async def _look_at_pool(self, name: str) -> None:
        entry = self._store.get(Kind.POOLS, name)
        pool = spec_of(entry, PoolSpec)
        if entry is None or pool is None or not isinstance(entry.status, PoolStatus):
            return
        by_node: dict[str, list[int]] = {}
        for at, member in enumerate(pool.members):
            by_node.setdefault(member.node, []).append(at)
        shown: dict[int, MemberStatus] = {}
        for node, places in by_node.items():
            if node not in self.alive:
                for at in places:
                    shown[at] = MemberStatus(
                        name=pool.members[at].name, node=node, state="missing", message="the node is not in the cluster"
                    )
                continue
            found = await self._deployment.look_at_members(node, pool.tier, [pool.members[at] for at in places])
            for at, each in zip(places, found, strict=True):
                shown[at] = MemberStatus(
                    name=each.name, node=node, state=each.state, message=each.message[:1024].replace("\n", " "),
                    free_bytes=each.free_bytes, used_bytes=each.used_bytes,
                )  # fmt: skip
        members = tuple(shown[at] for at in range(len(pool.members)))
        for status in members:
            place = PlaceId(name, status.name)
            self._service.set_member(MemberFacts(place, status.node, status.state == "ready", status.free_bytes))
        ready = sum(status.state == "ready" for status in members)
        is_ready = ready == len(members)
        shown_status = PoolStatus(
            observed_generation=entry.generation, members=members,
            conditions=(condition("Ready", is_ready, "AllMembersReady" if is_ready else "MembersMissing",
                                  f"{ready} of {len(members)} members are ready", entry.status.conditions,
                                  self._service.now_s()),),
        )  # fmt: skip
        self._store.set_status(Kind.POOLS, name, shown_status)

    async def _read_tables(self) -> None:
        now, entries = self._now_s(), list(self._store.all(Kind.TABLES))
        for gone in self.tables.keys() - {entry.name for entry in entries}:
            self._forget_table(gone)
        for entry in entries:
            # One that says nothing of its source was made anew under the name of one that was read.
            if isinstance(entry.status, TableStatus) and not entry.status.rows:
                self._forget_table(entry.name)
        due = [
            entry.name
            for entry in entries
            if entry.name not in self.tables and now >= self._table_retry.get(entry.name, 0.0)
        ]
        await all_of([self._read_table(name) for name in due], self._on_fault)

    def _forget_table(self, name: str) -> None:
        self.tables.pop(name, None)
        self._world.tables.pop(name, None)

    async def _read_table(self, name: str) -> None:
        entry = self._store.get(Kind.TABLES, name)
        spec = spec_of(entry, TableSpec)
        if entry is None or spec is None or not isinstance(entry.status, TableStatus):
            return
        now = self._service.now_s()
        try:
            found = await self._read_somewhere(name, spec)
        except SlackTierError as exc:
            self._table_retry[name] = self._now_s() + 5.0
            said = condition("SourceRead", False, "SourceUnreadable", str(exc), entry.status.conditions, now)
            self._store.set_status(Kind.TABLES, name, entry.status.model_copy(update={"conditions": (said,)}))
            return
        self.tables[name] = found
        self._world.tables[name] = TableFacts(found.layer_id, found.rows, found.row_bytes)
        said = condition("SourceRead", True, "HeadersRead", "", entry.status.conditions, now)
        self._store.set_status(
            Kind.TABLES, name,
            entry.status.model_copy(update={
                "observed_generation": entry.generation, "model": found.model[:1024], "table_uuid": found.table_uuid,
                "rows": found.rows, "row_bytes": found.row_bytes, "region_bytes": found.region_bytes,
                "conditions": (said,),
            }),
        )  # fmt: skip

    async def _read_somewhere(self, name: str, spec: TableSpec) -> TableFound:
        """By the head's own node, one that is to hold a copy, else any: not every node sees every checkpoint."""
        nodes = [""] if "" in self.alive else []
        for entry in self._store.all(Kind.REPLICAS):
            wanted = spec_of(entry, ReplicaSpec)
            if wanted is not None and wanted.table == name:
                pool = self._world.pools.get(wanted.pool)
                members = members_of(wanted, pool, None) if pool else ()
                nodes += [member.node for member in members if member.node in self.alive]
        # Before it has been read it has no copies, and in a cluster the head sees no checkpoint.
        nodes += sorted(self.alive)
        fault: SlackTierError = DeploymentError("no node is there to read it")
        for node in dict.fromkeys(nodes):
            try:
                return await self._deployment.read_table(node, spec)
            except SlackTierError as exc:
                fault = exc
        raise fault
