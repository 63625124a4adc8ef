# SPDX-License-Identifier: Apache-2.0
"""What the head asks of the nodes. Ray answers it in service; tests answer it in process.

The head's own node is named "". All that crosses is JSON, since the two sides are different processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from slacktier.api import MemberSpec, Part, TableSpec
from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.node.devices import MemberFound, RegionFound
from slacktier_tierd.node.stage_job import StageJob, StageNews


class DeploymentError(SlackTierError):
    """A node, or Ray as a whole, did not do what it was asked; it may later."""


class NodeFacts(Part):
    """One node: resources are Ray's custom ones that we use (nvme, memory_node, rdma)."""

    name: str
    is_alive: bool
    address: str = ""
    resources: dict[str, float] = {}  # noqa: RUF012 - pydantic copies it


class TableFound(Part):
    """What a source's headers say of a table."""

    table_uuid: str
    model: str
    layer_id: int
    rows: int
    row_bytes: int
    region_bytes: int


class RegionAt(Part):
    """A replica and the paths of its stripes."""

    replica: str
    paths: tuple[str, ...]


class Deployment(Protocol):
    """Every call raises DeploymentError where the node does not answer, and ConfigError for what it refuses."""

    @property
    def is_up(self) -> bool: ...

    async def nodes(self) -> list[NodeFacts]: ...

    async def look_at_members(self, node: str, tier: Tier, members: Sequence[MemberSpec]) -> list[MemberFound]: ...

    async def look_at_regions(self, node: str, regions: Sequence[RegionAt]) -> list[RegionFound]: ...

    async def read_table(self, node: str, spec: TableSpec) -> TableFound: ...

    def stage(self, node: str, job: StageJob) -> AsyncIterator[StageNews]: ...

    async def evict(self, node: str, region: RegionAt, table_uuid: str) -> None: ...

    async def start_memory_node(self, node: str, config: MemoryNodeConfig) -> None: ...

    async def memory_nodes(self, node: str, names: Sequence[str]) -> list[MemoryNodeStatus]: ...

    async def stop_memory_node(self, node: str, name: str) -> None: ...

    async def close(self) -> None: ...


def as_json(part: Part | Sequence[Part]) -> Any:
    """Models as what json.dumps takes."""
    if isinstance(part, Part):
        return part.model_dump(mode="json")
    return [each.model_dump(mode="json") for each in part]
