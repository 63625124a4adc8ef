# SPDX-License-Identifier: Apache-2.0
"""One read of a source for several stagings of it: each chunk is read once while its readers stay close together.

A reader that runs ahead waits a little for the others; one that has fallen behind what is kept reads for itself, so
that no staging ever waits for another that has failed or is only verifying.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from slacktier_tierd.aligned import Bytes
from slacktier_tierd.file_ids import FileId
from slacktier_tierd.sources import RowBuffers, RowSource
from slacktier_tierd.tables import Table

CHUNKS_KEPT: Final = 24
WAIT_S: Final = 0.5


@dataclass(slots=True)
class _Chunk:
    """Rows that one reader has read, for the others to copy."""

    left: int
    ready: threading.Event = field(default_factory=threading.Event)
    weights: Bytes | None = None
    scales: Bytes | None = None


class SharedReads:
    """The reads of `reader_count` sources over one; close() closes it when the last of them is closed."""

    def __init__(self, source: RowSource, reader_count: int) -> None:
        self._source, self._readers = source, reader_count
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._chunks: OrderedDict[tuple[int, int], _Chunk] = OrderedDict()
        self._open = reader_count
        self.bytes_read = 0

    def readers(self) -> list[SharedReader]:
        """One source for each staging."""
        return [SharedReader(self) for _ in range(self._readers)]

    @property
    def source(self) -> RowSource:
        return self._source

    def read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        key = (row_first, row_count)
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is None:
                chunk = self._begin(key)
                is_mine = True
            else:
                is_mine = False
        if is_mine:
            return self._fill(key, chunk, into)
        chunk.ready.wait()
        if chunk.weights is None:  # the reader that was to fill it has failed; so may we, with our own error
            return self._read(row_first, row_count, into)
        weights = into.weights[: chunk.weights.nbytes]
        weights[:] = chunk.weights
        scales = None
        if chunk.scales is not None:
            scales = into.scales[: chunk.scales.nbytes]
            scales[:] = chunk.scales
        with self._lock:
            self._used(key, chunk)
        return weights, scales

    def _begin(self, key: tuple[int, int]) -> _Chunk:
        """A place for a chunk that nobody has read yet; waits a moment for readers that still want the old ones."""
        if len(self._chunks) >= CHUNKS_KEPT:
            self._room.wait_for(lambda: len(self._chunks) < CHUNKS_KEPT, WAIT_S)
        if key in self._chunks:  # somebody else began it meanwhile; a second read of it is no harm
            return _Chunk(1)
        while len(self._chunks) >= CHUNKS_KEPT:
            self._chunks.popitem(last=False)
        chunk = _Chunk(self._open - 1)
        if chunk.left > 0:
            self._chunks[key] = chunk
        return chunk

    def _fill(self, key: tuple[int, int], chunk: _Chunk, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        try:
            weights, scales = self._read(*key, into)
            if chunk.left > 0:
                chunk.weights, chunk.scales = weights.copy(), None if scales is None else scales.copy()
        finally:
            chunk.ready.set()
        return weights, scales

    def _read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        weights, scales = self._source.read(row_first, row_count, into)
        with self._lock:
            self.bytes_read += weights.nbytes + (0 if scales is None else scales.nbytes)
        return weights, scales

    def _used(self, key: tuple[int, int], chunk: _Chunk) -> None:
        chunk.left -= 1
        if chunk.left <= 0 and self._chunks.get(key) is chunk:
            del self._chunks[key]
            self._room.notify_all()

    def closed(self) -> None:
        """One reader has ended: nothing waits for it any more."""
        with self._lock:
            self._open -= 1
            for key, chunk in list(self._chunks.items()):
                self._used(key, chunk)
            is_last = self._open == 0
        if is_last:
            self._source.close()


class SharedReader:
    """One staging's view of a shared source."""

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared
        self._is_open = True

    @property
    def table(self) -> Table:
        return self._shared.source.table

    @property
    def direct(self) -> bool:
        return self._shared.source.direct

    def files(self) -> frozenset[FileId]:
        return self._shared.source.files()

    def read(self, row_first: int, row_count: int, into: RowBuffers) -> tuple[Bytes, Bytes | None]:
        return self._shared.read(row_first, row_count, into)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._shared.closed()
