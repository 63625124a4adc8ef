# SPDX-License-Identifier: Apache-2.0
"""What a memory node is told when it starts, and what it says about itself; both cross processes as JSON."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from slacktier.api import Part, TableSpec
from slacktier.tiers import Tier


class MemoryNodeConfig(Part):
    """One memory node.

    name       the replica's; also of its socket and log in run_dir
    paths      stripes of a region to load; or table: the source to load from
    token      what a peer must prove that it knows, as text
    lease_s    it ends by itself when nobody has asked how it is for this long; 0: never
    """

    name: str
    run_dir: str
    tier: Tier
    host: str
    port: int
    token: str = Field(repr=False)
    hugepages: bool = False
    paths: tuple[str, ...] = ()
    table: TableSpec | None = None
    lease_s: float = 3600.0

    @model_validator(mode="after")
    def _one_origin(self) -> MemoryNodeConfig:
        if bool(self.paths) == (self.table is not None):
            raise ValueError("expected exactly one of paths and table")
        return self


class MemoryNodeStatus(Part):
    """state: loading, serving, failed, absent (no such process)."""

    name: str
    state: str
    message: str = ""
    pid: int = 0
    host: str = ""
    port: int = 0
    done_bytes: int = 0
    total_bytes: int = 0
    table_uuid: str = ""
    layer_id: int = 0
    epoch: int = 0
    rows: int = 0
    digest: str = ""
    stats: dict[str, Any] = Field(default={})
