# SPDX-License-Identifier: Apache-2.0
"""Checks regions against the model before a core opens them: state, layer, size, and that replicas are one table."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slacktier.errors import ConfigError, TierUnavailableError
from slacktier.page import Superblock
from slacktier.pattern import pattern_seed, pattern_seed_of
from slacktier.region import open_region
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier_emulated.cache_size import CacheWish, check_caches
from slacktier_emulated.layers import LayerPlan, Source
from slacktier_emulated.step import LayerTable
from slacktier_native import rdma, row_link
from slacktier_native.rdma import RdmaSpec
from slacktier_native.row_link import RowsSpec, parse_address
from slacktier_native.sources import RemoteSpec


@dataclass(frozen=True, slots=True)
class TableIdentity:
    """Equal for two regions if they are copies of one staged table: same rows, same bytes."""

    table_uuid: uuid.UUID
    layer_id: int
    row_count: int
    payload_bytes: int
    scale_bytes: int
    source_digest: bytes

    @classmethod
    def of(cls, sb: Superblock) -> TableIdentity:
        return cls(sb.table_uuid, sb.layer_id, sb.row_count, sb.payload_bytes, sb.scale_bytes, sb.source_digest)


def remote_spec(source: Source, layer_id: int) -> RemoteSpec:
    """A tcp or rdma source as the core takes it."""
    if source.token_file is None:
        raise ConfigError(f"tier {source.tier}: no row server or memory node")
    host, port = parse_address(source.address)
    make = RdmaSpec if source.tier is Tier.RDMA else RowsSpec
    return make(host, port, source.token_file, layer_id)


def read_superblock(source: Source, layer_id: int) -> Superblock:
    """Superblock of a complete region, or of a row server's or memory node's; raises ConfigError or ContractError for
    anything else, partial ones included, TierUnavailableError for a server that does not answer."""
    if source.tier in REMOTE_TIERS:
        spec = remote_spec(source, layer_id)
        return rdma.read_superblock(spec) if isinstance(spec, RdmaSpec) else row_link.read_superblock(spec)
    with open_region(source.paths) as region:
        return region.superblock


def _read_superblocks(layer_id: int, sources: Sequence[Source]) -> list[tuple[Source, Superblock]]:
    """Of the sources that answer: a row server may be away as long as another replica is there."""
    found: list[tuple[Source, Superblock]] = []
    away: TierUnavailableError | None = None
    for source in sources:
        try:
            found.append((source, read_superblock(source, layer_id)))
        except TierUnavailableError as exc:
            if exc.errno == 0:  # it answered, with a refusal
                raise ConfigError(str(exc)) from exc
            away = exc
    if not found and away is not None:
        raise away
    return found


def check_sources(layer_id: int, sources: Sequence[Source], *, row_count: int) -> Superblock:
    """The superblock that all replicas of a layer agree on.

    row_count  rows that the model's layout gives this layer
    raises     ConfigError for a region that is not complete, of another layer or size, or another table than the first;
               TierUnavailableError where no source answers
    """
    found = _read_superblocks(layer_id, sources)
    first = found[0][1]
    where = found[0][0].where
    if first.layer_id != layer_id:
        raise ConfigError(f"{where}: holds layer {first.layer_id}, given for layer {layer_id}")
    if first.row_count != row_count:
        raise ConfigError(
            f"{where}: {first.row_count} rows, the model's layer {layer_id} has {row_count}",
            hint="a scaled table needs its own model config: --config FILE, the config.json beside the checkpoint",
        )
    for source, sb in found[1:]:
        if TableIdentity.of(sb) != TableIdentity.of(first):
            raise ConfigError(f"{source.where}: another table than {where}", hint="replicas hold the same rows")
    return first


def layer_table(plan: LayerPlan, *, row_count: int, check_seed: int | None) -> tuple[LayerTable, TableIdentity]:
    """What the engine knows about a layer from its regions.

    check_seed  the seed given with --check-pattern; None: what the superblock says, if it says anything
    """
    sb = check_sources(plan.layer_id, plan.sources, row_count=row_count)
    seed = pattern_seed_of(sb) if check_seed is None else pattern_seed(check_seed, plan.layer_id)
    table = LayerTable(plan.layer_id, sb.payload_bytes, sb.scale_bytes, seed, tier_label(plan.sources))
    return table, TableIdentity.of(sb)


def check_plans(plans: Sequence[LayerPlan], row_counts: Mapping[int, int], *, check_seed: int | None = None) -> None:
    """All regions against the model, before anything starts; raises ConfigError or ContractError.

    row_counts  rows by layer, of the model config
    check_seed  the seed given with --check-pattern
    """
    wishes = []
    for plan in plans:
        if plan.layer_id not in row_counts:
            known = ", ".join(map(str, row_counts))
            raise ConfigError(f"layer {plan.layer_id}: the model config has tables at layers {known}")
        sb = check_sources(plan.layer_id, plan.sources, row_count=row_counts[plan.layer_id])
        _check_seed(sb, plan, check_seed)
        wishes.append(CacheWish(plan.layer_id, plan.cache_rows, sb.payload_bytes + sb.scale_bytes, sb.row_count))
        wishes.append(host_wish(plan, sb.payload_bytes + sb.scale_bytes))
    check_caches(wishes)


def host_wish(plan: LayerPlan, row_bytes: int) -> CacheWish:
    """The second level as memory to be had; more rows than the table has are never taken."""
    rows = plan.host_cache_bytes // row_bytes
    return CacheWish(plan.layer_id, rows, row_bytes, rows)


def _check_seed(sb: Superblock, plan: LayerPlan, check_seed: int | None) -> None:
    """A region that names its pattern is not checked against another; one that names none is taken at its word."""
    found = pattern_seed_of(sb)
    if check_seed is not None and found is not None and found != pattern_seed(check_seed, plan.layer_id):
        raise ConfigError(
            f"--check-pattern {check_seed}: {plan.sources[0].where} holds rows of another seed: {sb.source!r}",
            hint="without --check-pattern, rows are checked against the seed that the region names",
        )


def tier_label(sources: Sequence[Source]) -> str:
    """The tier that reads go to first."""
    return sources[0].tier.value
