# SPDX-License-Identifier: Apache-2.0
"""What a server's processes hold, and which pages of a file lie in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

from servers import Server

_LIBC = ctypes.CDLL(None, use_errno=True)


def proportional_bytes(server: Server) -> int:
    """Memory of all its processes, shared pages divided by who shares them."""
    return sum(_pss(pid) for pid in server.pids())


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


def forget(path: Path) -> None:
    """Take the file's pages out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_bytes(path: Path) -> int:
    """Bytes of the file that lie in the page cache: whatever was read of it, with what was read ahead."""
    size = path.stat().st_size
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapped:
        # The address is only for the call: a view that lived on would keep the mapping from being closed.
        view = ctypes.c_char.from_buffer(mapped)
        failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), pages)
        del view
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return sum(page & 1 for page in pages) * mmap.PAGESIZE
