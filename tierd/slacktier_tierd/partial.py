# SPDX-License-Identifier: Apache-2.0
"""Stages only the pages of given rows in a full-size address space: a sparse file in state `partial`, for tests.

Serving refuses it. The digest chain covers the staged pages' rows: chunks without a staged page are skipped, and in
the others the staged pages' payloads, then their scales, are hashed. There is no resume; a killed run leaves nothing.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slacktier.digest import CHUNK_PAGES, chain_next, chain_start, chunk_digest
from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, State, Superblock, encode_superblock
from slacktier_native.pages import PageCodec
from slacktier_tierd.aligned import Bytes, aligned_buffer
from slacktier_tierd.pipeline import run_ordered
from slacktier_tierd.report import Progress, StageReport, no_progress
from slacktier_tierd.scan import RegionScan
from slacktier_tierd.sources import RowBuffers, RowSource, row_buffers
from slacktier_tierd.striped import StripedPages
from slacktier_tierd.targets import Target, open_target

RowIds = npt.NDArray[np.int64]


def stage_partial(
    source: RowSource, path: Path, row_ids: RowIds, *, threads: int = 16, progress: Progress = no_progress
) -> StageReport:
    """A new sparse file at path in which the pages of row_ids (any order, repeats allowed) are staged.

    raises  ConfigError for ids outside the table and for a path that exists; TierError where the disk fails
    """
    sb = source.table.superblock()
    encode_superblock(sb)
    pages = staged_pages_of(row_ids, sb)
    if path.exists():
        raise ConfigError(f"{path}: exists; a partial region is made anew", hint="remove it first")
    target = open_target(path)
    try:
        run = _PartialStaging(source, target, sb, pages, threads, progress)
        return run.run()
    finally:
        target.close()


def staged_pages_of(row_ids: RowIds, sb: Superblock) -> RowIds:
    """The ascending page ids that hold these rows."""
    if row_ids.ndim != 1 or row_ids.size == 0 or row_ids.dtype.kind not in "iu":
        raise ConfigError(f"row ids: {row_ids.dtype} {list(row_ids.shape)}, expected a 1-D array of integers")
    low, high = int(row_ids.min()), int(row_ids.max())
    if low < 0 or high >= sb.row_count:
        raise ConfigError(f"row ids: {low} to {high}, expected 0 to {sb.row_count - 1}")
    return np.unique(row_ids.astype(np.int64, copy=False) // sb.rows_per_page)


def runs_of(page_ids: RowIds) -> list[tuple[int, int]]:
    """(first page, length) of each run of consecutive pages."""
    breaks = np.flatnonzero(np.diff(page_ids) != 1) + 1
    return [(int(run[0]), len(run)) for run in np.split(page_ids, breaks)]


@dataclass(slots=True)
class _Scratch:
    rows: RowBuffers
    weights: Bytes
    scales: Bytes
    pages: Bytes


class _PartialStaging:
    def __init__(
        self, source: RowSource, target: Target, sb: Superblock, pages: RowIds, threads: int, progress: Progress
    ) -> None:
        self._source, self._target, self._sb = source, target, replace(sb, source_digest=chain_start(sb))
        self._threads, self._progress = threads, progress
        self._codec = PageCodec(sb)
        self._striped = StripedPages(sb, [(target.path, target.fd)])
        self._chunks = np.split(pages, np.flatnonzero(np.diff(pages // CHUNK_PAGES)) + 1)
        self._digests: dict[int, bytes] = {}  # chunk -> digest of its staged rows
        self._report = StageReport(
            "partial", str(sb.table_uuid), sb.layer_id, sb.epoch, sb.row_count, sb.page_count, len(pages), 0,
            source.direct, target.direct,
        )  # fmt: skip

    def run(self) -> StageReport:
        self._target.sparse(self._sb.stripe_bytes)
        self._target.write_superblock(self._sb)
        chain = self._write()
        self._target.sync()
        self._target.drop_cached()
        self._verify()
        self._target.write_superblock(
            self._sb.with_state(State.PARTIAL, staged_pages=self._report.pages_staged, source_digest=chain)
        )
        self._target.publish()
        self._report.source_digest = chain.hex()
        self._report.bytes_written = (self._report.pages_staged + 2 * SUPERBLOCK_PAGES) * PAGE_BYTES
        return self._report

    def _write(self) -> bytes:
        chain, total = chain_start(self._sb), self._report.pages_staged * PAGE_BYTES
        work = run_ordered(0, len(self._chunks), self._scratch, self._write_chunk, threads=self._threads)
        with self._report.phase("stage") as count, closing(work):
            for at, (digest, read_bytes) in enumerate(work):
                self._digests[int(self._chunks[at][0]) // CHUNK_PAGES] = digest
                chain = chain_next(chain, digest)
                self._report.bytes_read += read_bytes
                count.bytes += len(self._chunks[at]) * PAGE_BYTES
                self._progress("stage", count.bytes, total)
        return chain

    def _scratch(self) -> _Scratch:
        sb = self._sb
        rows = CHUNK_PAGES * sb.rows_per_page
        return _Scratch(
            row_buffers(self._source.table, rows), aligned_buffer(rows * sb.payload_bytes),
            aligned_buffer(rows * sb.scale_bytes), aligned_buffer(CHUNK_PAGES * PAGE_BYTES),
        )  # fmt: skip

    def _write_chunk(self, at: int, scratch: _Scratch) -> tuple[bytes, int]:
        sb, weight_bytes, scale_bytes = self._sb, 0, 0
        for page_first, length in runs_of(self._chunks[at]):
            rows = self._codec.rows_in(page_first, length)
            weights, scales = self._source.read(page_first * sb.rows_per_page, rows, scratch.rows)
            scratch.weights[weight_bytes : weight_bytes + weights.nbytes] = weights
            weight_bytes += weights.nbytes
            if scales is not None:
                scratch.scales[scale_bytes : scale_bytes + scales.nbytes] = scales
                scale_bytes += scales.nbytes
            pages = scratch.pages[: length * PAGE_BYTES]
            self._codec.encode(page_first, length, weights, scales, pages)
            self._striped.write(page_first, pages, scratch.pages[:0])
        digest = chunk_digest(scratch.weights[:weight_bytes].data, scratch.scales[:scale_bytes].data)
        return digest, weight_bytes + scale_bytes

    def _verify(self) -> None:
        """Read all of it back, holes too: the staged pages are right and everything else is zero."""
        total, staged = self._sb.page_count * PAGE_BYTES, 0
        work = RegionScan(self._sb, self._striped, sparse=True).chunks(threads=self._threads)
        with self._report.phase("verify") as count, closing(work):
            for index, chunk in enumerate(work):
                staged += chunk.staged_count
                if chunk.fault_count or (chunk.staged_count and chunk.digest != self._digests.get(index)):
                    fault = chunk.faults[0] if chunk.faults else f"rows of chunk {index} are not the source's"
                    raise ContractError(f"{self._target.path}: read back after staging: {fault}")
                count.bytes += chunk.page_count * PAGE_BYTES
                self._progress("verify", count.bytes, total)
        if staged != self._report.pages_staged:
            raise ContractError(
                f"{self._target.path}: {staged} pages read back, expected {self._report.pages_staged}"
            )  # fmt: skip
        self._report.bytes_verified = count.bytes
