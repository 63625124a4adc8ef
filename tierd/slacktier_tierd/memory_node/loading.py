# SPDX-License-Identifier: Apache-2.0
"""A table into memory, from a region or straight from its source; every bit is checked before it is served."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from slacktier.digest import CHUNK_PAGES, chain_next, chain_start, chunk_count, chunk_digest
from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, State, Superblock
from slacktier.region import Region, open_region
from slacktier_native.memory_table import MemoryTable, map_memory
from slacktier_native.pages import PageCodec
from slacktier_tierd.aligned import Bytes, aligned_buffer
from slacktier_tierd.memory_node.preflight import check_memory
from slacktier_tierd.node.memory_facts import HUGE_PAGE_BYTES
from slacktier_tierd.pipeline import run_ordered
from slacktier_tierd.report import Progress
from slacktier_tierd.sources import RowBuffers, RowSource, row_buffers
from slacktier_tierd.striped import StripedPages

_THREADS: Final = 4


def map_table(byte_count: int, *, hugepages: bool) -> Bytes:
    """Zeroed memory for a table; raises ConfigError where it, or the reserved huge pages, are not there."""
    check_memory(byte_count, hugepages=hugepages)
    if not hugepages:
        return map_memory(byte_count)
    rounded = -(-byte_count // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_HUGETLB", 0x40000)
    try:
        mapping = mmap.mmap(-1, rounded, flags=flags)
    except OSError as exc:
        raise ConfigError(f"{rounded} bytes of huge pages: {os.strerror(exc.errno or 0)}") from exc
    return np.frombuffer(mapping, np.uint8)[:byte_count]


def load_region(paths: Sequence[Path], *, hugepages: bool, progress: Progress) -> MemoryTable:
    """The table of a complete region; raises ConfigError or ContractError for one that is not, or is damaged."""
    with open_region(paths) as region:
        sb = replace(region.superblock, stripe_count=1, stripe_index=0)
        pages = map_table(sb.page_count * PAGE_BYTES, hugepages=hugepages)
        loader = _RegionLoader(region, sb, pages)
        with closing(loader.chunks()) as chunks:
            done = 0
            for count in chunks:
                done += count * PAGE_BYTES
                progress("load", done, pages.nbytes)
    return MemoryTable.of_pages(sb, pages)


class _RegionLoader:
    """Reads chunks of a region to their place in memory and verifies them there."""

    def __init__(self, region: Region, sb: Superblock, pages: Bytes) -> None:
        self._sb, self._pages = sb, pages
        self._codec = PageCodec(sb)
        self._striped = StripedPages(region.superblock, list(zip(region.paths, region.fds, strict=True)))

    def chunks(self) -> Generator[int, None, None]:
        return run_ordered(
            0, chunk_count(self._sb), lambda: self._striped.scratch(CHUNK_PAGES), self._load, threads=_THREADS
        )  # fmt: skip

    def _load(self, index: int, scratch: Bytes) -> int:
        first = index * CHUNK_PAGES
        count = min(CHUNK_PAGES, self._sb.page_count - first)
        pages = self._pages[first * PAGE_BYTES : (first + count) * PAGE_BYTES]
        self._striped.read(first, pages, scratch)
        self._codec.verify(first, count, pages)
        return count


def load_source(source: RowSource, *, hugepages: bool, progress: Progress) -> MemoryTable:
    """The table of a source, encoded into memory; its digest is what a staged region of it would have."""
    table = source.table
    sb = table.superblock()
    pages = map_table(sb.page_count * PAGE_BYTES, hugepages=hugepages)
    loader = _SourceLoader(source, sb, pages)
    chain, done = chain_start(sb), 0
    with closing(loader.chunks()) as chunks:
        for index, digest in enumerate(chunks):
            chain = chain_next(chain, digest)
            done += min(CHUNK_PAGES, sb.page_count - index * CHUNK_PAGES) * PAGE_BYTES
            progress("load", done, pages.nbytes)
    complete = sb.with_state(State.COMPLETE, staged_pages=sb.page_count, source_digest=chain)
    return MemoryTable.of_pages(complete, pages)


@dataclass(slots=True)
class _Scratch:
    rows: RowBuffers
    weights: Bytes
    scales: Bytes


class _SourceLoader:
    """Reads chunks of a source, encodes them in place, and reads them back out of memory to compare."""

    def __init__(self, source: RowSource, sb: Superblock, pages: Bytes) -> None:
        self._source, self._sb, self._pages = source, sb, pages
        self._codec = PageCodec(sb)

    def chunks(self) -> Generator[bytes, None, None]:
        return run_ordered(0, chunk_count(self._sb), self._scratch, self._load, threads=_THREADS)

    def _scratch(self) -> _Scratch:
        rows = CHUNK_PAGES * self._sb.rows_per_page
        return _Scratch(
            row_buffers(self._source.table, rows), aligned_buffer(rows * self._sb.payload_bytes),
            aligned_buffer(rows * self._sb.scale_bytes),
        )  # fmt: skip

    def _load(self, index: int, scratch: _Scratch) -> bytes:
        sb, first = self._sb, index * CHUNK_PAGES
        count = min(CHUNK_PAGES, sb.page_count - first)
        rows = self._codec.rows_in(first, count)
        weights, scales = self._source.read(first * sb.rows_per_page, rows, scratch.rows)
        digest = chunk_digest(weights.data, None if scales is None else scales.data)
        pages = self._pages[first * PAGE_BYTES : (first + count) * PAGE_BYTES]
        self._codec.encode(first, count, weights, scales, pages)
        self._codec.verify(first, count, pages)
        back_weights, back_scales = scratch.weights[: weights.nbytes], scratch.scales[: rows * sb.scale_bytes]
        self._codec.unpack(first, count, pages, back_weights, back_scales if sb.scale_bytes else None)
        if chunk_digest(back_weights.data, back_scales.data if sb.scale_bytes else None) != digest:
            raise ContractError(f"layer {sb.layer_id}: rows of chunk {index} are not the source's once in memory")
        return digest
