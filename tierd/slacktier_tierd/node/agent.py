# SPDX-License-Identifier: Apache-2.0
"""What a node does when the head asks, by name and with JSON arguments; whoever carries the call does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from slacktier.api import MemberSpec, TableSpec
from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES
from slacktier.region import SUPERBLOCK_BYTES
from slacktier.tiers import Tier
from slacktier_tierd.aligned import aligned_buffer
from slacktier_tierd.memory_node import client
from slacktier_tierd.memory_node.config import MemoryNodeConfig
from slacktier_tierd.memory_node.preflight import check_rdma
from slacktier_tierd.node.devices import look_at_member, look_at_region
from slacktier_tierd.node.table_source import open_source
from slacktier_tierd.targets import open_target

_MEMBERS = TypeAdapter(list[MemberSpec])


class NodeAgent:
    """One node's hands. run_dir: where memory nodes have their sockets and logs."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    def look_at_members(self, tier: str, members: list[Any]) -> list[Any]:
        found = [look_at_member(Tier(tier), member) for member in _MEMBERS.validate_python(members)]
        return [each.model_dump(mode="json") for each in found]

    def look_at_regions(self, regions: Sequence[dict[str, Any]]) -> list[Any]:
        return [look_at_region(each["replica"], each["paths"]).model_dump(mode="json") for each in regions]

    def read_table(self, spec: dict[str, Any]) -> dict[str, Any]:
        """What the source's headers say; raises ConfigError."""
        source = open_source(TableSpec.model_validate(spec))
        try:
            sb = source.table.superblock()
        finally:
            source.close()
        return {
            "table_uuid": str(sb.table_uuid), "model": sb.model, "layer_id": sb.layer_id, "rows": sb.row_count,
            "row_bytes": sb.row_bytes, "region_bytes": (sb.page_count + SUPERBLOCK_PAGES) * PAGE_BYTES,
        }  # fmt: skip

    def evict(self, paths: Sequence[str], table_uuid: str) -> None:
        """Take a table's region away: a file is removed, a device loses its superblocks. Anything else there stays."""
        for path in map(Path, paths):
            if path.exists():
                _evict_stripe(path, table_uuid)

    def start_memory_node(self, config: dict[str, Any]) -> None:
        made = MemoryNodeConfig.model_validate({**config, "run_dir": str(self._run_dir)})
        if made.tier is Tier.RDMA:
            check_rdma(PAGE_BYTES)
        client.start(made)

    def memory_nodes(self, names: Sequence[str]) -> list[Any]:
        return [client.status(self._run_dir, name).model_dump(mode="json") for name in names]

    def stop_memory_node(self, name: str) -> None:
        client.stop(self._run_dir, name)


def _evict_stripe(path: Path, table_uuid: str) -> None:
    target = open_target(path)
    try:
        if target.found is None or str(target.found.table_uuid) != table_uuid:
            raise ConfigError(f"{path}: does not hold table {table_uuid}; it stays as it is")
        if target.is_device:
            target.write(aligned_buffer(SUPERBLOCK_BYTES)[:SUPERBLOCK_BYTES], 0)
            target.sync()
        else:
            path.unlink()
    finally:
        target.close()
