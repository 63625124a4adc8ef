# SPDX-License-Identifier: Apache-2.0
"""Reads a region chunk by chunk, checks every bit of its pages, and hashes the rows in them.

Shared by the verification pass of a staging and by `slacktier verify`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

import numpy as np

from slacktier.digest import CHUNK_PAGES, chunk_count, chunk_digest
from slacktier.errors import ContractError
from slacktier.page import PAGE_BYTES, Superblock
from slacktier_native.pages import PageCodec, pattern_fill
from slacktier_tierd.aligned import Bytes, aligned_buffer
from slacktier_tierd.pipeline import run_ordered
from slacktier_tierd.striped import StripedPages

FAULTS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class ChunkScan:
    """What one chunk held: the digest of its rows, and its bad pages (the first few in words).

    staged_count  pages that hold rows; all of them but in a partial region
    """

    page_count: int
    staged_count: int
    digest: bytes
    fault_count: int
    faults: tuple[str, ...]


@dataclass(slots=True)
class _Scratch:
    pages: Bytes
    striped: Bytes
    weights: Bytes
    scales: Bytes
    expected: Bytes


class RegionScan:
    """One pass over all data pages of a region.

    pattern_seed  also compare each row with the pattern of this seed
    sparse        pages that are all zero were not staged; the others must be right, and only they are hashed
    """

    def __init__(
        self, sb: Superblock, pages: StripedPages, pattern_seed: int | None = None, *, sparse: bool = False
    ) -> None:
        self._sb, self._pages, self._seed, self._sparse = sb, pages, pattern_seed, sparse
        self._codec = PageCodec(sb)

    def chunks(self, *, threads: int) -> Generator[ChunkScan, None, None]:
        """Every chunk in order, for contextlib.closing; raises TierError where the target does not deliver."""
        return run_ordered(0, chunk_count(self._sb), self._scratch, self._scan, threads=threads)

    def _scratch(self) -> _Scratch:
        rows = CHUNK_PAGES * self._sb.rows_per_page
        return _Scratch(
            aligned_buffer(CHUNK_PAGES * PAGE_BYTES), self._pages.scratch(CHUNK_PAGES),
            aligned_buffer(rows * self._sb.payload_bytes), aligned_buffer(rows * self._sb.scale_bytes),
            aligned_buffer(rows * self._sb.row_bytes if self._seed is not None else 0),
        )  # fmt: skip

    def _scan(self, index: int, scratch: _Scratch) -> ChunkScan:
        sb, first = self._sb, index * CHUNK_PAGES
        count = min(CHUNK_PAGES, sb.page_count - first)
        if self._sparse and self._pages.is_hole(first, count):
            return ChunkScan(count, 0, b"", 0, ())
        pages = scratch.pages[: count * PAGE_BYTES]
        self._pages.read(first, pages, scratch.striped)
        by_page = pages.reshape(-1, PAGE_BYTES)
        runs = staged_runs(by_page) if self._sparse else [(0, count)]
        faults: list[str] = []
        rows = 0
        for at, length in runs:
            found, run_rows = self._scan_run(first + at, by_page[at : at + length], rows, scratch)
            faults += found
            rows += run_rows
        digest = chunk_digest(
            scratch.weights[: rows * sb.payload_bytes].data, scratch.scales[: rows * sb.scale_bytes].data
        )  # fmt: skip
        staged = sum(length for _, length in runs)
        return ChunkScan(count, staged, digest, len(faults), tuple(faults[:FAULTS_SHOWN_MAX]))

    def _scan_run(self, page_first: int, run: Bytes, rows_before: int, scratch: _Scratch) -> tuple[list[str], int]:
        """Faults and rows of consecutive pages; their rows are unpacked behind those of earlier runs."""
        sb = self._sb
        faults = page_faults(self._codec, page_first, len(run), run)
        rows = self._codec.rows_in(page_first, len(run))
        weights = scratch.weights[rows_before * sb.payload_bytes :][: rows * sb.payload_bytes]
        scales = scratch.scales[rows_before * sb.scale_bytes :][: rows * sb.scale_bytes]
        self._codec.unpack(page_first, len(run), run, weights, scales if sb.scale_bytes else None)
        if self._seed is not None and not faults:
            row_first = page_first * sb.rows_per_page
            faults = self._pattern_faults(self._seed, row_first, rows, weights, scales, scratch.expected)
        return faults, rows

    def _pattern_faults(
        self, seed: int, row_first: int, rows: int, weights: Bytes, scales: Bytes, expected: Bytes
    ) -> list[str]:
        sb = self._sb
        want_weights, want_scales = expected[: weights.size], expected[weights.size : weights.size + scales.size]
        pattern_fill(
            seed, row_first, rows, sb.payload_bytes, sb.scale_bytes, want_weights,
            want_scales if sb.scale_bytes else None,
        )  # fmt: skip
        bad = (weights != want_weights).reshape(rows, -1).any(axis=1)
        if sb.scale_bytes:
            bad |= (scales != want_scales).reshape(rows, -1).any(axis=1)
        return [f"layer {sb.layer_id} row {row_first + row}: not the pattern's bytes" for row in bad.nonzero()[0]]


def staged_runs(by_page: Bytes) -> list[tuple[int, int]]:
    """(first, length) of each run of pages that are not all zero; by_page [N, 4096]."""
    staged = by_page.view(np.uint64).any(axis=1)
    edges = np.flatnonzero(np.diff(staged, prepend=False, append=False)).reshape(-1, 2)
    return [(int(first), int(end - first)) for first, end in edges]


def page_faults(codec: PageCodec, page_first: int, page_count: int, pages: Bytes) -> list[str]:
    """One line for each bad page, naming its first bad row; [] where every bit is right."""
    if _fault(codec, page_first, page_count, pages) is None:
        return []
    by_page = pages.reshape(-1, PAGE_BYTES)
    found = (_fault(codec, page_first + at, 1, by_page[at]) for at in range(page_count))
    return [fault for fault in found if fault is not None]


def _fault(codec: PageCodec, page_first: int, page_count: int, pages: Bytes) -> str | None:
    try:
        codec.verify(page_first, page_count, pages)
    except ContractError as exc:
        return str(exc)
    return None
