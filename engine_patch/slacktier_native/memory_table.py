# SPDX-License-Identifier: Apache-2.0
"""A table's pages held in this process's memory, encoded from its rows by several threads."""

from __future__ import annotations

import ctypes
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, Superblock, encode_superblock
from slacktier_native.pages import PageCodec

Bytes = npt.NDArray[np.uint8]

_PAGES_PER_TASK: Final = 1 << 14
_BYTES_PER_WRITE: Final = 64 << 20


def map_memory(byte_count: int) -> Bytes:
    """Zeroed memory of its own mapping, in huge pages where the kernel allows; [byte_count] uint8."""
    try:
        mapping = mmap.mmap(-1, byte_count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as exc:
        raise ConfigError(f"memory of {byte_count} bytes: {os.strerror(exc.errno or 0)}") from exc
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


class MemoryTable:
    """Pages of one table; a source of a core as long as this object lives.

    weights  [rows, payload_bytes] uint8; scales [rows, scale_bytes] uint8
    threads  that encode; 0: one per core
    """

    def __init__(self, sb: Superblock, weights: Bytes, scales: Bytes, *, threads: int = 0) -> None:
        if weights.shape != (sb.row_count, sb.payload_bytes) or scales.shape != (sb.row_count, sb.scale_bytes):
            raise ConfigError(
                f"table rows of {weights.shape} and {scales.shape}, expected {sb.row_count} rows "
                f"of {sb.payload_bytes} and {sb.scale_bytes} bytes"
            )
        self.superblock = sb
        self._pages = map_memory(sb.page_count * PAGE_BYTES)
        codec = PageCodec(sb)

        def encode(first: int) -> None:
            count = min(_PAGES_PER_TASK, sb.page_count - first)
            row, rows = first * sb.rows_per_page, codec.rows_in(first, count)
            out = self._pages[first * PAGE_BYTES : (first + count) * PAGE_BYTES]
            codec.encode(first, count, weights[row : row + rows], scales[row : row + rows], out)

        with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
            list(pool.map(encode, range(0, sb.page_count, _PAGES_PER_TASK)))

    @classmethod
    def of_pages(cls, sb: Superblock, pages: Bytes) -> MemoryTable:
        """A table whose pages are encoded already and have been checked; [page_count * 4096] uint8."""
        if pages.nbytes != sb.page_count * PAGE_BYTES:
            raise ConfigError(f"{pages.nbytes} bytes of pages, expected {sb.page_count} pages")
        table = cls.__new__(cls)
        table.superblock, table._pages = sb, pages
        return table

    def write_region(self, path: Path) -> None:
        """Write the table where it can be read from as a region: to a new file, or to a block device."""
        with path.open("r+b" if path.exists() else "wb") as out:
            out.write(encode_superblock(self.superblock) * SUPERBLOCK_PAGES)
            for first in range(0, len(self._pages), _BYTES_PER_WRITE):
                out.write(self._pages[first : first + _BYTES_PER_WRITE].data)
            out.flush()
            os.fsync(out.fileno())

    @property
    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._pages.ctypes.data)
