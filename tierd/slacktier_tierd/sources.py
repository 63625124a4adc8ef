# SPDX-License-Identifier: Apache-2.0
"""Where a staging's rows come from: byte ranges of safetensors files, or the test pattern without any file.

A source is shared by threads; what a thread reads into is its own (`RowBuffers`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slacktier.errors import TierError
from slacktier.page import PAGE_BYTES
from slacktier.region import open_direct
from slacktier_native.pages import pattern_fill
from slacktier_tierd.aligned import Bytes, aligned_buffer, read_at
from slacktier_tierd.checkpoint import CONFIG_NAME, INDEX_NAME
from slacktier_tierd.file_ids import FileId, file_ids
from slacktier_tierd.tables import Segment, Table


@dataclass(slots=True)
class RowBuffers:
    """One thread's space for a read: raw file bytes (aligned), and rows put together from several segments."""

    weights_raw: Bytes
    scales_raw: Bytes
    weights: Bytes
    scales: Bytes


def row_buffers(table: Table, row_count: int) -> RowBuffers:
    """Space for reads of up to row_count rows of this table."""
    weights, scales = row_count * table.payload_bytes, row_count * table.scale_bytes
    return RowBuffers(
        aligned_buffer(weights + 2 * PAGE_BYTES), aligned_buffer(scales + 2 * PAGE_BYTES), aligned_buffer(weights),
        aligned_buffer(scales),
    )  # fmt: skip


class RowSource(Protocol):
    """Rows of one table, by range."""

    @property
    def table(self) -> Table: ...

    @property
    def direct(self) -> bool:
        """Whether every file is read with O_DIRECT; True where there is no file."""
        ...

    def files(self) -> frozenset[FileId]:
        """The files that staging must never write over."""
        ...

    def read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        """Payloads and scales of these rows, packed; views into `into`, good until its next use.

        raises  TierError if a file does not deliver
        """
        ...

    def close(self) -> None: ...


class PatternSource:
    """A table that exists nowhere: rows made from the pattern; for tests and for large address spaces."""

    direct = True

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self._seed = seed

    def files(self) -> frozenset[FileId]:
        return frozenset()

    def read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        table = self.table
        weights = into.weights[: row_count * table.payload_bytes]
        scales = into.scales[: row_count * table.scale_bytes] if table.scale_bytes else None
        pattern_fill(self._seed, row_first, row_count, table.payload_bytes, table.scale_bytes, weights, scales)
        return weights, scales

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class _OpenSegment:
    segment: Segment
    row_first: int
    fd: int


class SafetensorsSource:
    """A table's tensors, read where the headers say; see tables.py for what was checked before."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._fds: dict[Path, int] = {}
        self.direct = True
        try:
            self._weights = self._open(table.weights)
            self._scales = self._open(table.scales)
        except BaseException:
            self.close()
            raise

    def _open(self, segments: Sequence[Segment]) -> list[_OpenSegment]:
        opened, row_first = [], 0
        for segment in segments:
            if segment.path not in self._fds:
                self._fds[segment.path], direct = open_direct(segment.path, os.O_RDONLY)
                self.direct = self.direct and direct
            opened.append(_OpenSegment(segment, row_first, self._fds[segment.path]))
            row_first += segment.row_count
        return opened

    def files(self) -> frozenset[FileId]:
        """Those that rows come from; in a checkpoint's directory all, for it is of use only as a whole."""
        paths = set(self._fds)
        for directory in {path.parent for path in self._fds}:
            whole = (directory / INDEX_NAME).exists() or (directory / CONFIG_NAME).exists()
            paths.update(directory.iterdir() if whole else directory.glob("*.safetensors"))
        return file_ids(paths)

    def read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        table = self.table
        weights = _read_rows(
            self._weights, table.payload_bytes, row_first, row_count, into.weights_raw, into.weights
        )  # fmt: skip
        if not table.scale_bytes:
            return weights, None
        return weights, _read_rows(
            self._scales, table.scale_bytes, row_first, row_count, into.scales_raw, into.scales
        )  # fmt: skip

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])


def _read_rows(
    segments: Sequence[_OpenSegment], row_bytes: int, row_first: int, row_count: int, raw: Bytes, joined: Bytes
) -> Bytes:
    """Rows [row_first, +row_count), each row_bytes long; without a copy where one segment holds them all."""
    done = 0
    for opened in segments:
        first = max(row_first, opened.row_first)
        end = min(row_first + row_count, opened.row_first + opened.segment.row_count)
        if first >= end:
            continue
        offset = opened.segment.offset + (first - opened.row_first) * row_bytes
        rows = _read_range(opened, offset, (end - first) * row_bytes, raw)
        if end - first == row_count:
            return rows
        joined[done : done + rows.nbytes] = rows
        done += rows.nbytes
    return joined[:done]


def _read_range(opened: _OpenSegment, offset: int, byte_count: int, raw: Bytes) -> Bytes:
    """Bytes [offset, +byte_count) of the file by way of whole pages around them."""
    skipped = offset % PAGE_BYTES
    span = -(-(skipped + byte_count) // PAGE_BYTES) * PAGE_BYTES
    path = opened.segment.path
    try:
        count = read_at(opened.fd, raw[:span], offset - skipped)
    except OSError as exc:
        raise TierError(
            f"{path}: read of {byte_count} bytes at {offset} failed: {exc.strerror}", tier="source", operation="read",
            target=str(path), errno=exc.errno or 0,
        ) from exc  # fmt: skip
    if count < skipped + byte_count:
        raise TierError(
            f"{path}: it ends at {offset - skipped + count}, expected bytes up to {offset + byte_count}; was it cut "
            "while it was read?", tier="source", operation="read", target=str(path),
        )  # fmt: skip
    return raw[skipped : skipped + byte_count]
