# SPDX-License-Identifier: Apache-2.0
"""A disk that fails to order: one read-only file, served through the kernel's FUSE interface by threads of the test.

Reads reach `on_read` one by one, with O_DIRECT, io_uring and a loop device in front of it as well. No library is in
between: requests and replies are what include/uapi/linux/fuse.h says, version 7.31.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final

_REQUEST: Final = struct.Struct("<IIQQIIII")  # len, opcode, unique, node, uid, gid, pid, padding
_REPLY: Final = struct.Struct("<IiQ")  # len, -errno, unique
_READ: Final = struct.Struct("<QQI")  # handle, offset, size
_REQUEST_BYTES_MAX: Final = 1 << 17
_ROOT, _FILE = 1, 2
_MNT_FORCE, _MNT_DETACH = 1, 2
_LOOKUP, _GETATTR, _OPEN, _READ_FILE, _INIT, _FORGET, _BATCH_FORGET = 1, 3, 14, 15, 26, 2, 42
_DONE: Final = {18, 25, 29}  # release, flush, release of a directory: nothing to do
_DIRECT_IO: Final = 1  # of an open reply: no page cache in between
_FLAGS: Final = 1 | 1 << 15  # reads of one file at the same time, also with O_DIRECT

OnRead = Callable[[int, bytes], bytes]


def sound(offset: int, data: bytes) -> bytes:
    """What the disk holds."""
    return data


class FaultyDisk:
    """`path` is a file of the given content, mounted below `mount`, until close().

    on_read  (offset, what is there) -> what the reader gets, shorter if it is to be a short read; an OSError becomes
             the read's errno. Runs on several threads at once; may be changed at any time.
    """

    def __init__(self, mount: Path, content: bytes, *, threads: int = 16) -> None:
        mount.mkdir()
        self.on_read: OnRead = sound
        self.reads = 0
        self._mount, self._content = mount, content
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        rc = self._libc.mount(b"faulty-disk", os.fsencode(mount), b"fuse", 0, options.encode())
        if rc:
            code = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(code, f"mount of FUSE on {mount}: {os.strerror(code)}")
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def path(self) -> Path:
        return self._mount / "disk"

    def unplug(self) -> None:
        """The disk is gone at once: reads in flight and all later ones fail; idempotent."""
        self._libc.umount2(os.fsencode(self._mount), _MNT_FORCE | _MNT_DETACH)

    def close(self) -> None:
        self.unplug()
        for thread in self._threads:
            thread.join(10)
        os.close(self._fd)

    def __enter__(self) -> FaultyDisk:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                raw = os.read(self._fd, _REQUEST_BYTES_MAX)
            except OSError as exc:
                if exc.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):  # a request that was interrupted
                    continue
                return  # ENODEV: unmounted
            _, opcode, unique, node, *_ = _REQUEST.unpack_from(raw)
            if opcode in (_FORGET, _BATCH_FORGET):
                continue  # these have no reply
            try:
                code, body = 0, self._answer(opcode, node, raw[_REQUEST.size :])
            except OSError as exc:
                code, body = -(exc.errno or errno.EIO), b""
            with contextlib.suppress(OSError):  # the reader is gone
                os.write(self._fd, _REPLY.pack(_REPLY.size + len(body), code, unique) + body)

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        if opcode == _READ_FILE:
            _, offset, size = _READ.unpack_from(body)
            self.reads += 1
            return self.on_read(offset, self._content[offset : offset + size])
        if opcode == _LOOKUP:
            if body.rstrip(b"\0") != b"disk":
                raise OSError(errno.ENOENT, "no such file")
            return struct.pack("<QQQQII", _FILE, 0, 3600, 3600, 0, 0) + self._attributes(_FILE)
        if opcode == _GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if opcode == _OPEN:
            return struct.pack("<QII", 1, _DIRECT_IO, 0)
        if opcode == _INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, _FLAGS, 64, 48, 4096, 1, 0, 0, 0)
        if opcode in _DONE:
            return b""
        raise OSError(errno.ENOSYS, "not of this disk")

    def _attributes(self, node: int) -> bytes:
        size = len(self._content) if node == _FILE else 0
        mode = stat.S_IFREG | 0o444 if node == _FILE else stat.S_IFDIR | 0o555
        return struct.pack("<6Q10I", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def failing(code: int, pages: set[int], page_bytes: int, first_page: int) -> OnRead:
    """That errno on reads that touch one of the data pages; first_page pages lie before the first of them."""

    def on_read(offset: int, data: bytes) -> bytes:
        first, end = offset // page_bytes, -(-(offset + len(data)) // page_bytes)
        if any(page + first_page in range(first, end) for page in pages):
            raise OSError(code, os.strerror(code))
        return data

    return on_read


def late(seconds: float) -> OnRead:
    def on_read(offset: int, data: bytes) -> bytes:
        time.sleep(seconds)
        return data

    return on_read
