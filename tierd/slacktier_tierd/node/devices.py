# SPDX-License-Identifier: Apache-2.0
"""Looks at places for tables and at what their superblocks say. Nothing here writes or claims."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slacktier.api import MemberSpec, Part
from slacktier.errors import ContractError, SlackTierError
from slacktier.page import Superblock, newest_superblock
from slacktier.region import open_direct, read_superblock_copies, stripe_size
from slacktier.tiers import Tier
from slacktier_tierd.mounts import device_use
from slacktier_tierd.node.memory_facts import available_bytes

REGION_SUFFIX: Final = ".region"


class MemberFound(Part):
    """A place as it was found. state: ready, missing, refused."""

    name: str
    state: str
    message: str = ""
    free_bytes: int = 0
    used_bytes: int = 0
    is_device: bool = False


class RegionFound(Part):
    """What the superblocks at a replica's paths say. state: absent, foreign, staging, partial, complete, broken."""

    replica: str
    state: str
    message: str = ""
    table_uuid: str = ""
    layer_id: int = 0
    epoch: int = 0
    rows: int = 0
    row_bytes: int = 0
    staged_pages: int = 0
    page_count: int = 0
    digest: str = ""


def look_at_member(tier: Tier, member: MemberSpec) -> MemberFound:
    """One place of a pool."""
    if member.path is None:
        return MemberFound(name=member.name, state="ready", free_bytes=_memory_bytes(member))
    path = Path(member.path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return _directory(path, member)
        if stat.S_ISBLK(mode):
            return _device(path, member)
    except OSError as exc:
        return MemberFound(name=member.name, state="missing", message=f"{path}: {exc.strerror}")
    except SlackTierError as exc:
        return MemberFound(name=member.name, state="refused", message=f"{exc}" + (f" ({exc.hint})" if exc.hint else ""))
    return MemberFound(name=member.name, state="refused", message=f"{path}: neither a directory nor a block device")


def _memory_bytes(member: MemberSpec) -> int:
    free = available_bytes(hugepages=member.hugepages)
    return free if member.capacity_bytes is None else min(free, member.capacity_bytes)


def _directory(path: Path, member: MemberSpec) -> MemberFound:
    if not os.access(path, os.W_OK | os.X_OK):
        return MemberFound(name=member.name, state="refused", message=f"{path}: not writable for user {os.geteuid()}")
    space = os.statvfs(path)
    free = space.f_bavail * space.f_frsize
    used = sum(file.stat().st_size for file in path.glob(f"*{REGION_SUFFIX}"))
    if member.capacity_bytes is not None:
        free = max(0, min(free, member.capacity_bytes - used))
    return MemberFound(name=member.name, state="ready", free_bytes=free, used_bytes=used)


def _device(path: Path, member: MemberSpec) -> MemberFound:
    fd, _ = open_direct(path, os.O_RDONLY)
    try:
        size, copies = stripe_size(fd), read_superblock_copies(fd)
    finally:
        os.close(fd)
    try:
        found: Superblock | None = newest_superblock(copies)
    except ContractError:
        found = None
    if found is not None:
        return MemberFound(name=member.name, state="ready", used_bytes=found.stripe_bytes, is_device=True)
    use = device_use(path.stat().st_rdev)
    if use:
        return MemberFound(name=member.name, state="refused", message=f"{path}: device in use: {use}")
    if not member.format:
        return MemberFound(
            name=member.name, state="refused",
            message=f"{path}: carries no superblock of ours; `format: true` gives leave to write over it",
        )  # fmt: skip
    return MemberFound(name=member.name, state="ready", free_bytes=size, is_device=True)


def region_paths(replica: str, members: Sequence[MemberSpec]) -> tuple[str, ...]:
    """Where a replica's stripes are: a device as it is, in a directory a file of the replica's name."""
    paths = []
    for member in members:
        path = Path(str(member.path))
        if path.is_block_device() or str(path).startswith("/dev/"):
            paths.append(str(path))
        else:
            paths.append(str(path / f"{replica}{REGION_SUFFIX}"))
    return tuple(paths)


def look_at_region(replica: str, paths: Sequence[str]) -> RegionFound:
    """What is at a replica's paths, by the superblock of the stripe that is furthest behind."""
    found: list[Superblock] = []
    for text in paths:
        path = Path(text)
        if not path.exists():
            return RegionFound(replica=replica, state="absent", message=f"{path}: not there")
        try:
            fd, _ = open_direct(path, os.O_RDONLY)
            try:
                found.append(newest_superblock(read_superblock_copies(fd)))
            finally:
                os.close(fd)
        except ContractError as exc:
            return RegionFound(replica=replica, state="foreign", message=f"{path}: {exc}")
        except (SlackTierError, OSError) as exc:
            return RegionFound(replica=replica, state="broken", message=f"{path}: {exc}")
    sb = min(found, key=lambda each: (each.state.name == "COMPLETE", each.staged_pages))
    if len({(each.table_uuid, each.layer_id, each.epoch) for each in found}) > 1:
        return RegionFound(replica=replica, state="staging", message="stripes of different stagings")
    return RegionFound(
        replica=replica, state=sb.state.name.lower(), table_uuid=str(sb.table_uuid), layer_id=sb.layer_id,
        epoch=sb.epoch, rows=sb.row_count, row_bytes=sb.row_bytes, staged_pages=sb.staged_pages,
        page_count=sb.page_count, digest=sb.source_digest.hex(),
    )  # fmt: skip
