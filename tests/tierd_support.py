# SPDX-License-Identifier: Apache-2.0
"""A head without Ray: nodes that answer in this process, a clock that the test turns, and calls to the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

from slacktier.api import Kind, MemberSpec, ReplicaStatus, TableSpec
from slacktier.tiers import Tier
from slacktier_tierd.deployment.protocol import DeploymentError, NodeFacts, RegionAt, TableFound
from slacktier_tierd.head.app import make_app
from slacktier_tierd.head.guard import Guard
from slacktier_tierd.head.limits import RateLimit
from slacktier_tierd.head.metrics import HeadMetrics
from slacktier_tierd.head.reconcile import Reconciler
from slacktier_tierd.head.service import Service
from slacktier_tierd.head.settings import Decider, HeadSettings
from slacktier_tierd.head.store import Store
from slacktier_tierd.head.tokens import FileTokens
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.node.agent import NodeAgent
from slacktier_tierd.node.devices import MemberFound, RegionFound
from slacktier_tierd.node.stage_job import StageJob, StageNews, run_stage_job

ADMIN, ALICE, READER = "admin-token-0123456789", "alice-token-0123456789", "reader-token-012345678"
TOKENS = f"admin me {ADMIN}\ninstance alice {ALICE}\nreader eve {READER}\n"


def table_body(layer_id: int = 14, rows: int = 2000, seed: int = 3) -> dict[str, Any]:
    return {"layer_id": layer_id, "synthetic": {"shape": "v41", "rows": rows, "seed": seed}}


def instance_body(**changes: Any) -> dict[str, Any]:
    """An instance that reads 600 pages of layer 14 in a window of 9.35 ms."""
    layer = {"layer_id": 14, "table": "t14", "window_ms": 9.35, "misses": [{"cache_rows": 0, "pages": 600}]}
    return {"step_ms": 29.4, "slo_pct": 1.0, "layers": [layer], **changes}


class InProcessDeployment:
    """Nodes as agents of this process; a memory node is a line in a table, which serves nothing."""

    is_up = True

    def __init__(self, directory: Path, names: Sequence[str] = ("",)) -> None:
        self.agents = {name: NodeAgent(directory / f"run{at}") for at, name in enumerate(names)}
        self.dead: set[str] = set()
        self.staged: list[tuple[str, ...]] = []
        self.news: list[StageNews] = []
        self.memory: dict[str, MemoryNodeStatus] = {}

    def _agent(self, node: str) -> NodeAgent:
        if node in self.dead or node not in self.agents:
            raise DeploymentError(f"node {node!r} does not answer")
        return self.agents[node]

    async def nodes(self) -> list[NodeFacts]:
        return [
            NodeFacts(name=name, is_alive=name not in self.dead, address=f"10.0.0.{at}")
            for at, name in enumerate(self.agents)
        ]

    async def look_at_members(self, node: str, tier: Tier, members: Sequence[MemberSpec]) -> list[MemberFound]:
        found = self._agent(node).look_at_members(tier.value, [member.model_dump(mode="json") for member in members])
        return [MemberFound.model_validate(each) for each in found]

    async def look_at_regions(self, node: str, regions: Sequence[RegionAt]) -> list[RegionFound]:
        found = self._agent(node).look_at_regions([region.model_dump(mode="json") for region in regions])
        return [RegionFound.model_validate(each) for each in found]

    async def read_table(self, node: str, spec: TableSpec) -> TableFound:
        return TableFound.model_validate(self._agent(node).read_table(spec.model_dump(mode="json")))

    async def stage(self, node: str, job: StageJob) -> AsyncIterator[StageNews]:
        self._agent(node)
        self.staged.append(tuple(target.replica for target in job.targets))
        for news in await asyncio.to_thread(lambda: list(run_stage_job(job))):
            self.news.append(news)
            yield news

    async def evict(self, node: str, region: RegionAt, table_uuid: str) -> None:
        self._agent(node).evict(region.paths, table_uuid)

    async def start_memory_node(self, node: str, config: MemoryNodeConfig) -> None:
        self._agent(node)
        spec = config.table
        found = self.agents[node].read_table(spec.model_dump(mode="json")) if spec else {"table_uuid": "", "rows": 0}
        self.memory[config.name] = MemoryNodeStatus(
            name=config.name, state="serving", host=config.host, port=4000, table_uuid=found["table_uuid"],
            rows=found["rows"], epoch=1,
        )  # fmt: skip

    async def memory_nodes(self, node: str, names: Sequence[str]) -> list[MemoryNodeStatus]:
        self._agent(node)
        return [self.memory.get(name, MemoryNodeStatus(name=name, state="absent")) for name in names]

    async def stop_memory_node(self, node: str, name: str) -> None:
        self.memory.pop(name, None)

    async def close(self) -> None:
        """Nothing runs."""


class Head:
    """One head in this process; `tick` does what its loop would do, `call` asks its API."""

    def __init__(
        self, directory: Path, deployment: InProcessDeployment | None = None, *, decider: Decider = Decider.TIERD,
        requests_per_s: float = 1e6,
    ) -> None:  # fmt: skip
        tokens = directory / "tokens"
        tokens.write_text(TOKENS)
        tokens.chmod(0o600)
        self.clock_s = 1000.0
        self.deployment = deployment or InProcessDeployment(directory)
        settings = HeadSettings(directory / "state.sqlite", decider=decider, watches_max=4)
        self.store = Store(settings.state_path, now_s=self.now_s)
        self.service = Service(self.store, settings, now_s=self.now_s)
        self.reconciler = Reconciler(self.service, self.deployment, now_s=self.now_s)
        metrics = HeadMetrics(tick=lambda: (0.0, 0), restarts=lambda: 0, refusals=lambda: self.guard.refusals)
        app = make_app(self.service, is_ready=lambda: (True, ""), metrics=metrics)
        limit = RateLimit(requests_per_s, requests_per_s, now_s=self.now_s)
        self.guard = Guard(app, FileTokens(tokens), limit, body_timeout_s=1.0)

    def now_s(self) -> float:
        return self.clock_s

    async def call(
        self, method: str, path: str, body: Any = None, *, token: str | None = ADMIN, content: bytes | None = None
    ) -> Any:
        """The answer of one call; `content` is a body that may be no JSON."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if content is not None:
            headers["Content-Type"] = "application/json"
        transport = httpx.ASGITransport(app=self.guard, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://tierd", trust_env=False) as client:
            if content is not None:
                return await client.request(method, path, content=content, headers=headers)
            return await client.request(method, path, json=body, headers=headers)

    async def put(self, path: str, body: Any, *, token: str = ADMIN) -> Any:
        answer = await self.call("PUT", f"/v1/{path}", body, token=token)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def pool(self, name: str, directory: Path, members: Sequence[str], **spec: Any) -> None:
        """A pool of directories, one per member, made if need be; a member's node is what stands before a slash."""
        made = []
        for member in members:
            node, _, short = member.rpartition("/")
            path = directory / name / short
            path.mkdir(parents=True, exist_ok=True)
            made.append({"name": short, "node": node, "path": str(path)})
        read = {"a_us": 100, "b_us": 3, "c_us": 0.4}
        await self.put(f"pools/{name}", {"tier": "nvme", "members": made, "read": read, **spec})

    async def tick(self, until: Callable[[], bool] | None = None, *, count: int = 1, seconds: float = 5.0) -> None:
        """Some rounds of the loop, each `seconds` later; with `until` as many as it takes, at most 50."""
        for at in range(50 if until else count):
            self.clock_s += seconds
            await self.reconciler.tick()
            for job in list(self.reconciler.jobs):
                await asyncio.wait([job])
            if until is not None and until():
                return
            assert until is None or at < 49, "it never came"

    def replica(self, name: str) -> ReplicaStatus:
        entry = self.store.get(Kind.REPLICAS, name)
        assert entry is not None
        assert isinstance(entry.status, ReplicaStatus)
        return entry.status

    def close(self) -> None:
        self.store.close()
