# SPDX-License-Identifier: Apache-2.0
"""Reads and writes consecutive data pages of a region across its stripes: page p lies on stripe p % n."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from slacktier.errors import ContractError, TierError
from slacktier.page import PAGE_BYTES, Superblock
from slacktier_tierd.aligned import Bytes, aligned_buffer, read_at, write_at


class StripedPages:
    """The data pages behind one descriptor per stripe, in stripe order. Threads bring their own scratch."""

    def __init__(self, sb: Superblock, stripes: Sequence[tuple[Path, int]]) -> None:
        self._sb, self._stripes = sb, stripes

    def scratch(self, page_count: int) -> Bytes:
        """Space that read() and write() of up to page_count pages need."""
        per_stripe = page_count // len(self._stripes) + 1
        return aligned_buffer(per_stripe * PAGE_BYTES if len(self._stripes) > 1 else 0)

    def is_hole(self, page_first: int, page_count: int) -> bool:
        """Whether a one-stripe file has no blocks for these pages, which then read as zeros; False where unknown."""
        path, fd = self._stripes[0]
        if len(self._stripes) > 1:
            return False
        try:
            found = os.lseek(fd, self._sb.page_offset(page_first), os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:  # no data from there to the end
                return True
            if exc.errno == errno.EINVAL:  # a block device, or a file system without holes
                return False
            raise _failed(path, "seek", page_first, exc) from exc
        return found >= self._sb.page_offset(page_first + page_count)

    def read(self, page_first: int, pages: Bytes, scratch: Bytes) -> None:
        """Fill pages [page_count * 4096] from page_first on; raises TierError, or ContractError where a stripe ends."""
        if len(self._stripes) == 1:
            self._read_one(0, page_first, pages)
            return
        by_page = pages.reshape(-1, PAGE_BYTES)
        for stripe, skip in self._parts(page_first, len(by_page)):
            mine = by_page[skip :: len(self._stripes)]
            span = scratch[: mine.size]
            self._read_one(stripe, page_first + skip, span)
            mine[:] = span.reshape(-1, PAGE_BYTES)

    def write(self, page_first: int, pages: Bytes, scratch: Bytes) -> None:
        """Write pages from page_first on; raises TierError on a write error."""
        if len(self._stripes) == 1:
            self._write_one(0, page_first, pages)
            return
        by_page = pages.reshape(-1, PAGE_BYTES)
        for stripe, skip in self._parts(page_first, len(by_page)):
            mine = by_page[skip :: len(self._stripes)]
            span = scratch[: mine.size]
            span.reshape(-1, PAGE_BYTES)[:] = mine
            self._write_one(stripe, page_first + skip, span)

    def _parts(self, page_first: int, page_count: int) -> list[tuple[int, int]]:
        """(stripe, position of its first page among these pages) of each stripe that has one."""
        count = len(self._stripes)
        parts = [(stripe, (stripe - page_first) % count) for stripe in range(count)]
        return [(stripe, skip) for stripe, skip in parts if skip < page_count]

    def _read_one(self, stripe: int, page_id: int, span: Bytes) -> None:
        path, fd = self._stripes[stripe]
        offset = self._sb.page_offset(page_id)
        try:
            count = read_at(fd, span, offset)
        except OSError as exc:
            raise _failed(path, "read", page_id, exc) from exc
        if count != span.nbytes:
            raise ContractError(f"{path}: it ends at {offset + count}, expected {offset + span.nbytes} bytes")

    def _write_one(self, stripe: int, page_id: int, span: Bytes) -> None:
        path, fd = self._stripes[stripe]
        try:
            write_at(fd, span, self._sb.page_offset(page_id))
        except OSError as exc:
            raise _failed(path, "write", page_id, exc) from exc


def _failed(path: Path, operation: str, page_id: int, exc: OSError) -> TierError:
    hint = "run the same command again; it goes on where it stopped" if operation == "write" else ""
    return TierError(
        f"{path}: {operation} from page {page_id} on failed: {exc.strerror}", tier="nvme", operation=operation,
        target=str(path), errno=exc.errno or 0, hint=hint,
    )  # fmt: skip
