# SPDX-License-Identifier: Apache-2.0
"""From an access to what a lookup core opens: each layer's sources in order, and its share of the row cache."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from slacktier.api import Access, LayerAccess, ReplicaAccess
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup
from slacktier_native.rdma import RdmaSpec
from slacktier_native.row_link import RowsSpec
from slacktier_native.sources import AnySource, SourceSpec

Maker = Callable[[int, ReplicaAccess, Path], AnySource]


def _remote(layer_id: int, replica: ReplicaAccess, directory: Path) -> AnySource:
    if not replica.host:
        raise ConfigError(f"replica {replica.replica}: no address in the access")
    make = RdmaSpec if replica.tier is Tier.RDMA else RowsSpec
    table = uuid.UUID(replica.table_uuid)
    return make(replica.host, replica.port, token_file(directory, replica), layer_id, table=table)


def _local(layer_id: int, replica: ReplicaAccess, directory: Path) -> AnySource:
    delay = replica.delay.delay() if replica.delay else None
    return SourceSpec(replica.tier, tuple(Path(path) for path in replica.paths), replica.device, delay)


# What opens a replica of each tier.
MAKERS: Final[dict[Tier, Maker]] = {
    Tier.NVME: _local, Tier.DRAM: _local, Tier.EMULATED: _local, Tier.TCP: _remote,
    Tier.RDMA: _remote,
}  # fmt: skip


def token_file(directory: Path, replica: ReplicaAccess) -> Path:
    """The replica's key as a file for this user alone; written anew when the key has changed."""
    path = directory / f"{replica.replica}.token"
    if not path.exists() or path.read_text(encoding="ascii") != replica.token:
        new = directory / f".{replica.replica}.token-new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(replica.token)
        new.rename(path)
    return path


def layer_sources(
    layer: LayerAccess, directory: Path, tiers: Collection[Tier] = tuple(MAKERS)
) -> tuple[AnySource, ...]:
    """One layer's sources in order of preference; raises ConfigError where none can be opened by this build.

    directory  for keys; of this user alone
    tiers      that the engine reads; a replica on another one is passed over as long as one is left
    """
    made = tuple(
        MAKERS[replica.tier](layer.layer_id, replica, directory) for replica in layer.replicas if replica.tier in tiers
    )
    if not made:
        found = ", ".join(replica.tier.value for replica in layer.replicas)
        raise ConfigError(f"layer {layer.layer_id}: its replicas are on {found}, which this engine does not read")
    return made


def layer_setups(access: Access, directory: Path) -> tuple[LayerSetup, ...]:
    """What a LookupCore takes, layers in order of use; raises ConfigError for an access without a binding."""
    if not access.bound:
        raise ConfigError(f"instance {access.instance}: not bound: {access.message}")
    return tuple(
        LayerSetup(layer.layer_id, layer_sources(layer, directory), layer.cache_rows)
        for layer in sorted(access.layers, key=lambda each: each.layer_id)
    )
