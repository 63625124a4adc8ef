# SPDX-License-Identifier: Apache-2.0
"""Opens a region for reading: which stripes belong together, and which states a reader accepts.

Every reader goes through open_region(), so that no unfinished, mixed or cut-off region is ever served.
Nothing here writes. Layout: docs/page-format.md. The standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier.page import (
    PAGE_BYTES,
    SUPERBLOCK_PAGES,
    State,
    Superblock,
    carries_superblock,
    newest_superblock,
)

SUPERBLOCK_BYTES: Final = SUPERBLOCK_PAGES * PAGE_BYTES


@dataclass(frozen=True, slots=True)
class Region:
    """An open region: superblock of stripe 0, and one path and descriptor per stripe in stripe order.

    direct  every descriptor is open with O_DIRECT: offsets, lengths and addresses are multiples of 4096
    """

    superblock: Superblock
    paths: tuple[Path, ...]
    fds: tuple[int, ...]
    direct: bool

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    def __enter__(self) -> Region:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def open_error(path: Path, exc: OSError) -> SlackTierError:
    """What a person needs to know about a path that did not open: cause and way out."""
    if exc.errno == errno.ENOENT:
        hint = "check the volume's devicePath" if str(path).startswith("/dev/") else ""
        return ConfigError(f"{path}: no such file or device", hint=hint)
    if exc.errno in (errno.EACCES, errno.EPERM):
        return ConfigError(f"{path}: permission denied for user id {os.geteuid()}", hint=_permission_hint(path))
    return ConfigError(f"{path}: cannot be opened: {exc.strerror}")


def _permission_hint(path: Path) -> str:
    try:
        found = path.stat()
    except OSError:
        return "a directory above it is closed to this user"
    owner = f"it belongs to {found.st_uid}:{found.st_gid} with mode {stat.S_IMODE(found.st_mode):04o}"
    if not stat.S_ISBLK(found.st_mode):
        return owner
    return (
        f"{owner}; add the user to that group, or in a cluster set device_ownership_from_security_context = true "
        "in containerd's configuration and fsGroup or runAsUser in the pod"
    )


def open_direct(path: Path, flags: int) -> tuple[int, bool]:
    """(descriptor, whether O_DIRECT is in force) of a regular file or block device.

    File systems that refuse O_DIRECT are read through the page cache.
    raises  ConfigError for what does not open, and for what is neither of the two
    """
    fd, direct = _open_fd(path, flags)
    if not _is_storage(os.fstat(fd)):
        os.close(fd)
        raise ConfigError(f"{path}: neither a regular file nor a block device")
    # io_uring would answer EAGAIN where a read has to wait.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    return fd, direct


def _open_fd(path: Path, flags: int) -> tuple[int, bool]:
    """Without waiting, so that a FIFO can be told from a file: open() blocks until somebody writes to it."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            return os.open(path, flags | os.O_DIRECT), True
        except OSError as exc:
            if exc.errno != errno.EINVAL:
                raise
            return os.open(path, flags), False
    except OSError as exc:
        raise open_error(path, exc) from exc
    except ValueError as exc:  # a NUL byte in it
        raise ConfigError(f"{str(path)!r}: no path: {exc}") from exc


def _is_storage(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) or stat.S_ISBLK(found.st_mode)


def read_superblock_copies(fd: int) -> tuple[bytes, bytes]:
    """The first two pages of a stripe as they are; shorter where the file is."""
    with mmap.mmap(-1, SUPERBLOCK_BYTES) as buffer:  # page-aligned, as O_DIRECT wants it
        count = os.preadv(fd, [buffer], 0)
        raw = bytes(buffer[:count])
    return raw[:PAGE_BYTES], raw[PAGE_BYTES:]


def stripe_size(fd: int) -> int:
    """Bytes of an open regular file or block device."""
    found = os.fstat(fd)
    return os.lseek(fd, 0, os.SEEK_END) if stat.S_ISBLK(found.st_mode) else found.st_size


def identity(sb: Superblock) -> Superblock:
    """What all stripes of one region share; two stripes belong together if this is equal."""
    return replace(sb, stripe_index=0, sequence=0)


def check_size(sb: Superblock, path: Path, fd: int) -> None:
    """A file has exactly the stripe's bytes, a device at least; raises ContractError otherwise."""
    size, is_device = stripe_size(fd), stat.S_ISBLK(os.fstat(fd).st_mode)
    if size < sb.stripe_bytes or (size > sb.stripe_bytes and not is_device):
        raise ContractError(
            f"{path}: {size} bytes, expected {sb.stripe_bytes} by its superblock", hint="stage the table again"
        )


def order_stripes(found: Sequence[tuple[Path, Superblock]]) -> list[int]:
    """Positions of the given stripes in stripe order; raises if one is missing, twice there or of another region."""
    first_path, first = found[0]
    for path, sb in found[1:]:
        if (sb.table_uuid, sb.layer_id) != (first.table_uuid, first.layer_id):
            raise ConfigError(
                f"{path}: holds another table (layer {sb.layer_id} of {sb.model}) than {first_path} "
                f"(layer {first.layer_id} of {first.model})",
                hint="name the stripes of one region",
            )
        if identity(sb) != identity(first):
            raise ContractError(f"{path}: a stripe of another staging than {first_path}")
    indices = [sb.stripe_index for _, sb in found]
    missing = sorted(set(range(first.stripe_count)) - set(indices))
    if missing or len(indices) != first.stripe_count:
        wanted = f"stripes 0 to {first.stripe_count - 1}" if first.stripe_count > 1 else "one path"
        raise ConfigError(f"{first_path}: region given as stripes {sorted(indices)}, expected {wanted}, once each")
    return sorted(range(len(found)), key=lambda at: indices[at])


def check_state(sb: Superblock, path: Path, *, allow_partial: bool) -> None:
    """Raises ConfigError unless the state is `complete`, or `partial` where that was asked for."""
    if sb.state is State.STAGING:
        raise ConfigError(
            f"{path}: staging is not finished: {sb.staged_pages} of {sb.page_count} pages",
            hint="run the same `slacktier stage` again; it goes on where it stopped",
        )
    if sb.state is State.PARTIAL and not allow_partial:
        raise ConfigError(
            f"{path}: a partial region with {sb.staged_pages} of {sb.page_count} pages, for tests only; "
            "it is not served",
            hint="verify reads it with --allow-partial",
        )


def _open_stripe(path: Path) -> tuple[int, bool, Superblock]:
    fd, direct = open_direct(path, os.O_RDONLY)
    try:
        try:
            copies = read_superblock_copies(fd)
            if not carries_superblock(copies):
                raise ConfigError(f"{path}: no region: it carries no superblock", hint="`slacktier stage` makes one")
            return fd, direct, newest_superblock(copies)
        except ContractError as exc:
            raise ContractError(f"{path}: {exc}", hint=exc.hint) from exc
        except OSError as exc:
            raise ContractError(f"{path}: superblock cannot be read: {exc.strerror}") from exc
    except BaseException:
        os.close(fd)
        raise


def open_region(paths: Sequence[Path | str], *, allow_partial: bool = False) -> Region:
    """The region whose stripes are at these paths, in any order; the caller closes it.

    raises  ConfigError for a path that does not open or is no region, a missing stripe, stripes of different tables,
            or a state that readers refuse; ContractError for a damaged superblock, stripes of different stagings, or a
            wrong size
    """
    if not paths:
        raise ConfigError("region: no path given")
    opened: list[tuple[int, bool, Superblock]] = []
    where = [Path(path) for path in paths]
    try:
        for path in where:
            opened.append(_open_stripe(path))
        for path, (_, _, sb) in zip(where, opened, strict=True):
            check_state(sb, path, allow_partial=allow_partial)
        order = order_stripes([(path, sb) for path, (_, _, sb) in zip(where, opened, strict=True)])
        for path, (fd, _, sb) in zip(where, opened, strict=True):
            check_size(sb, path, fd)
    except BaseException:
        for fd, _, _ in opened:
            os.close(fd)
        raise
    return Region(
        superblock=opened[order[0]][2],
        paths=tuple(where[at] for at in order),
        fds=tuple(opened[at][0] for at in order),
        direct=all(direct for _, direct, _ in opened),
    )
