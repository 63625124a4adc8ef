# SPDX-License-Identifier: Apache-2.0
"""From what tierd tells a bound instance to what its core opens."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from slacktier.api import LayerAccess, ReplicaAccess
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_binding.sources import layer_sources
from slacktier_native.rdma import RdmaSpec

TABLE = uuid.uuid4()


def replica(tier: Tier) -> ReplicaAccess:
    return ReplicaAccess(
        replica=f"{tier.value}-copy", tier=tier, table_uuid=str(TABLE), digest="ab", epoch=1, rows=10,
        host="memory-0", port=9300, token="c0ffee",  # noqa: S106 -- nobody's
    )  # fmt: skip


def layer(*tiers: Tier) -> LayerAccess:
    return LayerAccess(layer_id=1, table="t", cache_rows=5, replicas=tuple(map(replica, tiers)))


def test_a_memory_node_is_read_by_rdma_with_the_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    node, server = layer_sources(layer(Tier.RDMA, Tier.TCP), tmp_path)
    assert isinstance(node, RdmaSpec)
    assert (node.address, node.layer_id, node.table) == ("memory-0:9300", 1, TABLE)
    assert node.token_file.read_text() == "c0ffee"
    assert node.token_file.stat().st_mode & 0o777 == 0o600
    assert server.tier is Tier.TCP


def test_an_engine_passes_over_a_tier_that_it_does_not_read_while_another_replica_is_left(tmp_path: Path) -> None:
    read = [Tier.NVME, Tier.TCP]
    assert [source.tier for source in layer_sources(layer(Tier.RDMA, Tier.TCP), tmp_path, read)] == [Tier.TCP]
    with pytest.raises(ConfigError, match="layer 1: its replicas are on rdma, which this engine does not read"):
        layer_sources(layer(Tier.RDMA), tmp_path, read)
