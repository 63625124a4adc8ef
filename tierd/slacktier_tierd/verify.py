# SPDX-License-Identifier: Apache-2.0
"""Checks every bit of a region: superblock copies, sizes, pages, padding, the digest of its rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slacktier.digest import chain_next, chain_start
from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, State, Superblock, decode_superblock
from slacktier.pattern import pattern_seed, pattern_seed_of
from slacktier.region import Region, open_region, read_superblock_copies
from slacktier_tierd.report import GIB, Progress, no_progress
from slacktier_tierd.scan import FAULTS_SHOWN_MAX, RegionScan
from slacktier_tierd.striped import StripedPages


@dataclass(slots=True)
class VerifyReport:
    """What a verification found. `faults` holds the first few, `fault_count` counts all.

    pages_checked  pages whose every bit was compared; in a partial region those that are staged
    """

    paths: list[str]
    state: str
    table_uuid: str
    layer_id: int
    epoch: int
    row_count: int
    page_count: int
    pattern_checked: bool
    direct: bool
    pages_checked: int = 0
    bytes_verified: int = 0
    seconds: float = 0.0
    fault_count: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, faults: Sequence[str], count: int | None = None) -> None:
        self.fault_count += len(faults) if count is None else count
        self.faults.extend(faults[: FAULTS_SHOWN_MAX - len(self.faults)])

    def as_json(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in VerifyReport.__slots__}
        return found | {"seconds": round(self.seconds, 3), "gib_s": round(self.bytes_verified / GIB / self.seconds, 3)}


def verify_region(
    paths: Sequence[Path], *, allow_partial: bool = False, check_pattern: bool = False, seed: int | None = None,
    threads: int = 16, progress: Progress = no_progress,
) -> VerifyReport:  # fmt: skip
    """Check every bit of the region at these paths (its stripes, in any order).

    check_pattern  also compare each row with the pattern; seed: the checkpoint's, else the one the region names
    raises         ConfigError for what cannot be opened as a region; ContractError where no superblock is valid or a
                   size is wrong; TierError where a device does not deliver. Other faults are in the report
    """
    with open_region(paths, allow_partial=allow_partial) as region:
        sb = region.superblock
        layer_seed = _layer_seed(sb, seed) if check_pattern else None
        report = VerifyReport(
            [str(path) for path in region.paths], sb.state.name.lower(), str(sb.table_uuid), sb.layer_id, sb.epoch,
            sb.row_count, sb.page_count, check_pattern, region.direct,
        )  # fmt: skip
        started = time.monotonic()
        _check_superblocks(region, report)
        _check_pages(region, report, layer_seed, threads, progress)
        report.seconds = time.monotonic() - started
    return report


def _layer_seed(sb: Superblock, seed: int | None) -> int:
    found = pattern_seed_of(sb) if seed is None else pattern_seed(seed, sb.layer_id)
    if found is None:
        raise ConfigError(
            f"layer {sb.layer_id}: its superblock names no pattern; it was staged from {sb.source!r}",
            hint="--seed names the checkpoint's seed",
        )
    return found


def _check_superblocks(region: Region, report: VerifyReport) -> None:
    for path, fd in zip(region.paths, region.fds, strict=True):
        copies = read_superblock_copies(fd)
        for index, copy in enumerate(copies):
            try:
                decode_superblock(copy)
            except ContractError as exc:
                report.add([f"{path}: superblock copy {index}: {exc}"])
        if copies[0] != copies[1] and not report.faults:
            report.add([f"{path}: the two superblock copies differ, though each is valid"])


def _check_pages(
    region: Region, report: VerifyReport, layer_seed: int | None, threads: int, progress: Progress
) -> None:  # fmt: skip
    sb = region.superblock
    pages = StripedPages(sb, list(zip(region.paths, region.fds, strict=True)))
    scan = RegionScan(sb, pages, layer_seed, sparse=sb.state is State.PARTIAL)
    chain, total = chain_start(sb), sb.page_count * PAGE_BYTES
    work = scan.chunks(threads=threads)
    with closing(work):
        for chunk in work:
            report.add(chunk.faults, chunk.fault_count)
            report.pages_checked += chunk.staged_count
            report.bytes_verified += chunk.page_count * PAGE_BYTES
            if chunk.staged_count:
                chain = chain_next(chain, chunk.digest)
            progress("verify", report.bytes_verified, total)
    if report.pages_checked != sb.staged_pages:
        report.add([f"{report.pages_checked} pages are staged, its superblock says {sb.staged_pages}"])
    if chain != sb.source_digest and not report.fault_count:
        report.add([f"digest of its rows {chain.hex()[:16]}, its superblock says {sb.source_digest.hex()[:16]}"])
