# SPDX-License-Identifier: Apache-2.0
"""One stripe's target: a regular file or a block device, held by one writer, and what is on it.

Opening changes nothing. A new file is made under a name of its own beside the target and takes the target's name
only with its full size and its superblocks in it, so that no kill leaves a file which is neither ours nor absent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slacktier.errors import ConfigError, ContractError, TierError
from slacktier.page import PAGE_BYTES, Superblock, encode_superblock, newest_superblock
from slacktier.region import open_error, read_superblock_copies, stripe_size
from slacktier_tierd.aligned import Bytes, aligned_buffer, write_at
from slacktier_tierd.file_ids import FileId, file_id
from slacktier_tierd.mounts import device_use
from slacktier_tierd.report import GIB

_BLKROGET: Final = 0x125E  # linux/fs.h: whether a block device is read-only
_BLKSSZGET: Final = 0x1268  # linux/fs.h: logical sector size of a block device


@dataclass(slots=True)
class Target:
    """An open, locked target.

    new_path  where a file that this run creates lies until publish(); None for one that was there
    found     its superblock, None where it carries none
    damaged   one of the superblock's two copies is older than the other or not valid
    """

    path: Path
    fd: int
    direct: bool
    is_device: bool
    new_path: Path | None
    found: Superblock | None
    damaged: bool = False

    @property
    def size(self) -> int:
        return stripe_size(self.fd)

    @property
    def file_id(self) -> FileId:
        return file_id(os.fstat(self.fd))

    def check_writable(self) -> None:
        """A read-only device opens for writing all the same, and fails at the first write; raises ConfigError."""
        if self.is_device and struct.unpack("i", fcntl.ioctl(self.fd, _BLKROGET, bytes(4)))[0]:
            raise ConfigError(f"{self.path}: the device is read-only", hint="`blockdev --setrw` makes it writable")

    def allocate(self, stripe_bytes: int) -> None:
        """Give a file all the blocks it needs, before anything is written; trim() then gives it its exact size.

        raises  ConfigError where the disk or the device is too small; a file is then as long as it was before
        """
        before = self.size
        if self.is_device:
            if before < stripe_bytes:
                raise ConfigError(f"{self.path}: device of {before} bytes, the region needs {stripe_bytes}")
            return
        try:
            os.posix_fallocate(self.fd, 0, stripe_bytes)
        except OSError as exc:
            os.ftruncate(self.fd, before)
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise self.failed("allocate", exc) from exc
            free = os.fstatvfs(self.fd)
            raise ConfigError(
                f"{self.path}: {exc.strerror}: the region needs {stripe_bytes / GIB:.3f} GiB, "
                f"{free.f_bavail * free.f_frsize / GIB:.3f} GiB are free"
            ) from exc

    def trim(self, byte_count: int) -> None:
        """Cut a file that is longer; a device stays as it is."""
        if not self.is_device and self.size > byte_count:
            os.ftruncate(self.fd, byte_count)

    def sparse(self, stripe_bytes: int) -> None:
        """Give a new file its full size without blocks."""
        try:
            os.ftruncate(self.fd, stripe_bytes)
        except OSError as exc:
            raise ConfigError(f"{self.path}: a file of {stripe_bytes} bytes is refused: {exc.strerror}") from exc

    def write(self, pages: Bytes, offset: int) -> None:
        try:
            write_at(self.fd, pages, offset)
        except OSError as exc:
            raise self.failed("write", exc) from exc

    def sync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as exc:
            raise self.failed("sync", exc) from exc

    def drop_cached(self) -> None:
        """Let what is read next come from the device; nothing to do with O_DIRECT."""
        if not self.direct:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def write_superblock(self, sb: Superblock) -> None:
        """Both copies, one after the other: at any moment one of them is whole and durable."""
        page = aligned_buffer(PAGE_BYTES)
        page[:] = np.frombuffer(encode_superblock(sb), dtype=np.uint8)
        for copy in (0, 1):
            self.write(page, copy * PAGE_BYTES)
            self.sync()
        self.found, self.damaged = sb, False

    def publish(self) -> None:
        """Give a new file its name; the superblocks are in it. The lock is held, so no other writer is between."""
        if self.new_path is None:
            return
        self.new_path.rename(self.path)
        self.new_path = None
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Release the lock; a file of this run that never got its name is removed."""
        if self.new_path is not None:
            self.new_path.unlink()
            self.new_path = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def failed(self, operation: str, exc: OSError) -> TierError:
        return TierError(
            f"{self.path}: {operation} failed: {exc.strerror}", tier="nvme", operation=operation,
            target=str(self.path), errno=exc.errno or 0, hint="run the same command again; it goes on where it stopped",
        )  # fmt: skip


def open_target(path: Path) -> Target:
    """Open and lock one target and read its superblock; nothing on it changes, and a missing file stays missing.

    raises  ConfigError for what can be no target, for a second writer and for a device in use
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return _open_new(path)
    except OSError as exc:
        raise open_error(path, exc) from exc
    if stat.S_ISBLK(mode):
        return _open_device(path)
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: neither a regular file nor a block device")
    return _lock(path, os.O_RDWR, is_device=False)


def _open_new(path: Path) -> Target:
    absolute = path.resolve()  # a link to a file that is not there yet stays a link
    if absolute.is_relative_to("/dev") and not absolute.is_relative_to("/dev/shm"):  # noqa: S108
        raise ConfigError(
            f"{path}: no such device; no other one is tried",
            hint="check the volume's devicePath and that the container is not privileged, which ignores volumeDevices",
        )
    if not absolute.parent.is_dir():
        raise ConfigError(f"{path}: no such directory: {absolute.parent}")
    new_path = absolute.parent / f".{absolute.name}.slacktier-new"
    target = _lock(new_path, os.O_RDWR | os.O_CREAT, is_device=False, named=path)
    target.path, target.new_path, target.found = absolute, new_path, None
    # Whoever holds the lock of this name's file is the only one who may rename it; was it renamed before we had it?
    if absolute.exists() or not new_path.exists() or new_path.stat().st_ino != os.fstat(target.fd).st_ino:
        target.new_path = None
        target.close()
        raise _second_writer(path)
    os.ftruncate(target.fd, 0)  # what a killed run left
    return target


def _open_device(path: Path) -> Target:
    use = device_use(path.stat().st_rdev)
    if use:
        raise ConfigError(f"{path}: device in use: {use}", hint="name a device that nothing else uses")
    # On a block device O_EXCL without O_CREAT claims it: mounts and other claimants get EBUSY, and so do we.
    target = _lock(path, os.O_RDWR | os.O_EXCL, is_device=True)
    (sector_bytes,) = struct.unpack("i", fcntl.ioctl(target.fd, _BLKSSZGET, bytes(4)))
    if sector_bytes > PAGE_BYTES:
        target.close()
        raise ConfigError(f"{path}: sectors of {sector_bytes} bytes, expected at most {PAGE_BYTES}")
    return target


def _second_writer(path: Path) -> ConfigError:
    return ConfigError(f"{path}: another process is writing it", hint="wait for it to end, or stop it")


def _open_fd(path: Path, flags: int, named: Path) -> tuple[int, bool]:
    for direct in (os.O_DIRECT, 0):
        try:
            return os.open(path, flags | direct | os.O_CLOEXEC, 0o644), bool(direct)
        except OSError as exc:
            if exc.errno == errno.EBUSY:
                raise ConfigError(f"{named}: device in use: another process or a mount has claimed it") from exc
            if exc.errno != errno.EINVAL or not direct:
                raise open_error(named, exc) from exc
    raise AssertionError("unreachable: the buffered attempt returns or raises")


def _lock(path: Path, flags: int, *, is_device: bool, named: Path | None = None) -> Target:
    fd, direct = _open_fd(path, flags, named or path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        copies = read_superblock_copies(fd)
    except BlockingIOError as exc:
        os.close(fd)
        raise _second_writer(named or path) from exc
    except OSError as exc:
        os.close(fd)
        raise ConfigError(f"{named or path}: cannot be locked and read: {exc.strerror}") from exc
    except BaseException:
        os.close(fd)
        raise
    return Target(path, fd, direct, is_device, None, _superblock(copies), damaged=copies[0] != copies[1])


def _superblock(copies: tuple[bytes, bytes]) -> Superblock | None:
    try:
        return newest_superblock(copies)
    except ContractError:  # not ours, or no longer readable as ours: the plan decides what that means
        return None
