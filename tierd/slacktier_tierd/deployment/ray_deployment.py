# SPDX-License-Identifier: Apache-2.0
"""The head's side of Ray: starts the driver process, starts it again when it ends, and carries calls to it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slacktier.api import MemberSpec, TableSpec
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_tierd.deployment.protocol import DeploymentError, NodeFacts, RegionAt, TableFound, as_json
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.node.devices import MemberFound, RegionFound
from slacktier_tierd.node.stage_job import StageJob, StageNews

START_S: Final = 120.0
CALL_S: Final = 40.0
_LINE_BYTES_MAX: Final = 64 << 20
_RESTART_S: Final = 2.0
# How long Ray's own processes go on without its head before they give up.
_RAY_ENVIRONMENT: Final = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RaySettings:
    """address: a cluster to join, or "" for a Ray of our own; resources: what our own Ray's one node offers."""

    run_dir: Path
    address: str = ""
    resources: tuple[tuple[str, float], ...] = (("nvme", 8.0), ("memory_node", 64.0))


class RayDeployment:
    """Calls to nodes by way of the driver process."""

    def __init__(self, settings: RaySettings) -> None:
        self._settings = settings
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Queue[dict[str, Any]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self.driver_pid = 0
        self.ray_head_pid = 0
        self.restarts = 0
        self.last_error = "Ray is starting"

    @property
    def is_up(self) -> bool:
        return self._writer is not None

    def start(self) -> None:
        """Begin to keep a driver running; needs a running loop."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            try:
                await self._run_driver()
                self.last_error = "Ray's driver has ended"
            except (OSError, DeploymentError) as exc:
                self.last_error = str(exc)
            self._fail_all()
            self.restarts += 1
            await asyncio.sleep(_RESTART_S)

    async def _run_driver(self) -> None:
        ours, theirs = socket.socketpair()
        resources = json.dumps(dict(self._settings.resources))
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "slacktier_tierd.deployment.ray_driver", self._settings.address,
                str(self._settings.run_dir), resources, stdin=theirs.fileno(),
                start_new_session=True, env={**os.environ, **_RAY_ENVIRONMENT},
            )  # fmt: skip
        reader, writer = await asyncio.open_connection(sock=ours, limit=_LINE_BYTES_MAX)
        try:
            hello = json.loads(await asyncio.wait_for(reader.readline(), START_S) or b"{}")
            if not hello.get("ready"):
                raise DeploymentError("Ray did not start; the lines above say why")
            self.driver_pid, self.ray_head_pid = hello["pid"], hello["ray_head_pid"]
            self._writer, self.last_error = writer, ""
            while line := await reader.readline():
                content = json.loads(line)
                waiting = self._waiting.get(content["id"])
                if waiting is not None:
                    waiting.put_nowait(content)
        except (TimeoutError, ConnectionError) as exc:
            raise DeploymentError(f"Ray's driver: {exc or 'no answer'}") from exc
        finally:
            self._writer = None
            writer.close()
            await self._end_driver()

    async def _end_driver(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()

    def _fail_all(self) -> None:
        for waiting in self._waiting.values():
            waiting.put_nowait({"error": {"is_config": False, "message": self.last_error, "hint": ""}})

    def _send(self, node: str, method: str, params: dict[str, Any]) -> int:
        if self._writer is None:
            raise DeploymentError(self.last_error)
        request_id = next(self._ids)
        self._waiting[request_id] = asyncio.Queue()
        line = json.dumps({"id": request_id, "node": node, "method": method, "params": params})
        self._writer.write(line.encode() + b"\n")
        return request_id

    async def _call(self, node: str, method: str, params: dict[str, Any], *, timeout_s: float = CALL_S) -> Any:
        request_id = self._send(node, method, params)
        try:
            return _result(await asyncio.wait_for(self._waiting[request_id].get(), timeout_s))
        except TimeoutError as exc:
            raise DeploymentError(f"node {node or 'local'}: no answer to {method} within {timeout_s:g} s") from exc
        finally:
            del self._waiting[request_id]

    async def nodes(self) -> list[NodeFacts]:
        try:
            found = await self._call("", "nodes", {}, timeout_s=15.0)
        except DeploymentError:
            if self._process is not None and self.is_up:
                self._process.kill()  # Ray's head is gone or stuck: begin anew
            raise
        return [NodeFacts.model_validate(each) for each in found]

    async def look_at_members(self, node: str, tier: Tier, members: Sequence[MemberSpec]) -> list[MemberFound]:
        found = await self._call(node, "look_at_members", {"tier": tier.value, "members": as_json(list(members))})
        return [MemberFound.model_validate(each) for each in found]

    async def look_at_regions(self, node: str, regions: Sequence[RegionAt]) -> list[RegionFound]:
        found = await self._call(node, "look_at_regions", {"regions": as_json(list(regions))})
        return [RegionFound.model_validate(each) for each in found]

    async def read_table(self, node: str, spec: TableSpec) -> TableFound:
        return TableFound.model_validate(await self._call(node, "read_table", {"spec": as_json(spec)}))

    async def stage(self, node: str, job: StageJob) -> AsyncIterator[StageNews]:
        request_id = self._send(node, "stage", {"job": as_json(job)})
        try:
            while True:
                content = await self._waiting[request_id].get()
                if "end" in content:
                    return
                if "error" in content:
                    _result(content)
                yield StageNews.model_validate(content["news"])
        finally:
            del self._waiting[request_id]

    async def evict(self, node: str, region: RegionAt, table_uuid: str) -> None:
        await self._call(node, "evict", {"paths": list(region.paths), "table_uuid": table_uuid})

    async def start_memory_node(self, node: str, config: MemoryNodeConfig) -> None:
        await self._call(node, "start_memory_node", {"config": as_json(config)})

    async def memory_nodes(self, node: str, names: Sequence[str]) -> list[MemoryNodeStatus]:
        found = await self._call(node, "memory_nodes", {"names": list(names)})
        return [MemoryNodeStatus.model_validate(each) for each in found]

    async def stop_memory_node(self, node: str, name: str) -> None:
        await self._call(node, "stop_memory_node", {"name": name})

    async def close(self) -> None:
        """End the driver; a Ray of our own ends with it."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end_driver()


def _result(content: dict[str, Any]) -> Any:
    if "error" in content:
        error = content["error"]
        kind = ConfigError if error["is_config"] else DeploymentError
        raise kind(error["message"], hint=error["hint"])
    return content["result"]
