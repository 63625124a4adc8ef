# SPDX-License-Identifier: Apache-2.0
"""Page-aligned buffers and whole reads and writes, as O_DIRECT wants them; each call releases the GIL."""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.page import PAGE_BYTES

_HUGE_PAGE_BYTES: Final = 2 << 20
Bytes = npt.NDArray[np.uint8]


def aligned_buffer(byte_count: int) -> Bytes:
    """A zeroed, page-aligned uint8 array of at least byte_count bytes; its pages are committed on first use."""
    rounded = max(PAGE_BYTES, -(-byte_count // PAGE_BYTES) * PAGE_BYTES)
    if rounded < _HUGE_PAGE_BYTES:
        return np.frombuffer(mmap.mmap(-1, rounded), dtype=np.uint8)
    # A device takes so many pieces of memory per request; in huge pages 4 MiB are a few pieces, not a thousand.
    space = mmap.mmap(-1, rounded + _HUGE_PAGE_BYTES)
    with suppress(OSError):  # a kernel without huge pages; small ones do
        space.madvise(mmap.MADV_HUGEPAGE)
    found = np.frombuffer(space, dtype=np.uint8)
    skipped = -found.ctypes.data % _HUGE_PAGE_BYTES
    return found[skipped : skipped + rounded]


def read_at(fd: int, out: Bytes, offset: int) -> int:
    """Fill out from offset on; returns the bytes read, fewer only at the end of the file."""
    done = 0
    while done < out.nbytes:
        count = os.preadv(fd, [out[done:].data], offset + done)
        done += count
        if count == 0 or count % PAGE_BYTES:  # the end of the file; O_DIRECT refuses to go on from a broken page
            break
    return done


def write_at(fd: int, pages: Bytes, offset: int) -> None:
    """Write all of pages at offset."""
    done = 0
    while done < pages.nbytes:
        done += os.pwritev(fd, [pages[done:].data], offset + done)
