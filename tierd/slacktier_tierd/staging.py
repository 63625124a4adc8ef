# SPDX-License-Identifier: Apache-2.0
"""Stages one table: source rows to a region on one or more targets, resumable, verified before it is `complete`.

Invariants, in the order in which they are kept:
- Nothing is written before source and targets have been checked and the space is there.
- Data is durable (fdatasync) before the watermark that counts it; a superblock's first copy before its second.
- `complete` is written after every page was read back, checked bit by bit, and its rows hashed to the same chunk
  digests as the source's rows.
Layout: docs/page-format.md. How a run is chosen: plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from slacktier.digest import CHUNK_PAGES, chain_next, chain_start, chunk_count, chunk_digest
from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, State, Superblock, encode_superblock
from slacktier_native.pages import PageCodec
from slacktier_tierd.aligned import Bytes, aligned_buffer
from slacktier_tierd.pipeline import run_ordered
from slacktier_tierd.plan import Action, Found, plan_staging
from slacktier_tierd.report import PhaseCount, Progress, StageReport, no_progress
from slacktier_tierd.scan import RegionScan
from slacktier_tierd.sources import RowBuffers, RowSource, row_buffers
from slacktier_tierd.striped import StripedPages
from slacktier_tierd.targets import Target, open_target


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How to stage.

    may_format       write over targets that carry no superblock of ours
    restage          write all pages anew with the next epoch, whatever region of ours is there
    threads          chunks in work at once; each holds about 15 MiB
    watermark_bytes  region bytes between two durable watermarks: what a kill may cost
    """

    may_format: bool = False
    restage: bool = False
    threads: int = 16
    watermark_bytes: int = 1 << 30


def stage(
    source: RowSource, paths: Sequence[Path], options: StageOptions = StageOptions(), progress: Progress = no_progress
) -> StageReport:
    """Make the region at these targets (stripe order) hold the source's table, complete and verified.

    A run that was killed goes on at its watermark. A region that is complete already is compared with the source and
    not written.
    raises  ConfigError for input that is refused, with the targets untouched; TierError where a disk fails;
            ContractError where what was read back is not what was written, with the region left unfinished
    """
    wanted = source.table.superblock(stripe_count=len(paths))
    wanted = replace(wanted, source_digest=chain_start(wanted))
    encode_superblock(wanted)  # refuses names that are too long while nothing is open yet
    with _targets(paths) as targets:
        found = _found(source, targets)
        plan = plan_staging(wanted, found, may_format=options.may_format, restage=options.restage)
        if plan.action is not Action.COMPARE:
            for target in targets:
                target.check_writable()
        run = _Staging(source, targets, plan.superblock, options, progress)
        if plan.action is Action.COMPARE:
            return run.compare()
        if plan.action is Action.START:
            run.start()
        return run.finish()


@contextmanager
def _targets(paths: Sequence[Path]) -> Iterator[list[Target]]:
    if not paths:
        raise ConfigError("no target given")
    identities = {(found.st_dev, found.st_ino) for path in paths if path.exists() for found in [path.stat()]}
    absent = {path.resolve() for path in paths if not path.exists()}
    if len(identities) + len(absent) != len(paths):
        raise ConfigError("one target is given twice; each stripe needs a file or device of its own")
    targets: list[Target] = []
    try:
        for path in paths:
            targets.append(open_target(path))
        yield targets
    finally:
        for target in targets:
            target.close()


def _found(source: RowSource, targets: Sequence[Target]) -> list[Found]:
    foreign = any(target.new_path is None and target.found is None for target in targets)
    source_files = source.files() if foreign else frozenset()
    return [
        Found(target.path, target.new_path is None, target.found, of_source=target.file_id in source_files)
        for target in targets
    ]


def allocate_all(targets: Sequence[Target], sizes: Sequence[int]) -> None:
    """Space for every stripe or, if one does not fit, every target as it was."""
    before = [target.size for target in targets]
    try:
        for target, size in zip(targets, sizes, strict=True):
            target.allocate(size)
    except BaseException:
        for target, size in zip(targets, before, strict=True):
            target.trim(size)
        raise


@dataclass(slots=True)
class _Scratch:
    rows: RowBuffers
    pages: Bytes
    striped: Bytes


class _Staging:
    """One run. `_sb` is the superblock in force, as of stripe 0."""

    def __init__(
        self, source: RowSource, targets: Sequence[Target], sb: Superblock, options: StageOptions, progress: Progress
    ) -> None:
        self._source, self._targets, self._sb = source, targets, sb
        self._options, self._progress = options, progress
        self._codec = PageCodec(sb)
        self._pages = StripedPages(sb, [(target.path, target.fd) for target in targets])
        self._digests: list[bytes] = []  # of the source's chunks, from chunk 0 on
        self._report = StageReport(
            "staged" if sb.staged_pages == 0 else "resumed", str(sb.table_uuid), sb.layer_id, sb.epoch, sb.row_count,
            sb.page_count, 0, sb.staged_pages, source.direct, all(target.direct for target in targets),
        )  # fmt: skip

    def compare(self) -> StageReport:
        """The region is complete: it stays as it is if the source's digest is its own."""
        self._report.outcome, self._report.pages_resumed_at = "unchanged", 0
        chain = self._hash_source(self._sb.page_count)
        if chain != self._sb.source_digest:
            raise ConfigError(
                f"{self._targets[0].path}: holds other rows of the same shape: digest "
                f"{self._sb.source_digest.hex()[:16]}, the source's is {chain.hex()[:16]}",
                hint="--restage replaces them",
            )
        for target in self._targets:
            if target.damaged:  # a kill between the two copies, or a flipped bit in one
                self._write_superblock(replace(self._sb, sequence=self._sb.sequence + 1))
                break
        return self._reported()

    def start(self) -> None:
        """Space and superblocks in state `staging` on every target, before any page."""
        sizes = [self._stripe(self._sb, index).stripe_bytes for index in range(len(self._targets))]
        allocate_all(self._targets, sizes)
        self._write_superblock(self._sb)
        for target, size in zip(self._targets, sizes, strict=True):
            target.trim(size)
            target.publish()

    def finish(self) -> StageReport:
        """Write from the watermark on, verify, mark complete."""
        if self._sb.staged_pages:
            self._check_resumed()
        self._write_pages()
        self._verify()
        self._write_superblock(
            self._sb.with_state(
                State.COMPLETE, staged_pages=self._sb.page_count, source_digest=self._sb.source_digest
            )
        )  # fmt: skip
        return self._reported()

    def _check_resumed(self) -> None:
        """The source must still have the rows that an earlier run staged from it."""
        if self._hash_source(self._sb.staged_pages) != self._sb.source_digest:
            raise ConfigError(
                f"{self._targets[0].path}: the source is not the one that its first {self._sb.staged_pages} pages "
                "were staged from",
                hint="--restage begins anew",
            )

    def _hash_source(self, page_end: int) -> bytes:
        """The chain over the chunks of pages [0, page_end); fills _digests."""
        chain, total = chain_start(self._sb), self._rows_in(0, page_end) * self._sb.row_bytes
        chunks = -(-page_end // CHUNK_PAGES)
        work = run_ordered(0, chunks, self._scratch, self._hash_chunk, threads=self._options.threads)
        with self._report.phase("check") as count, closing(work):
            for index, digest in enumerate(work):
                self._digests.append(digest)
                chain = chain_next(chain, digest)
                self._count_read(index, count)
                self._progress("check", count.bytes, total)
        return chain

    def _write_pages(self) -> None:
        sb, first = self._sb, self._sb.staged_pages // CHUNK_PAGES
        chain, written_at_watermark = sb.source_digest, 0
        total = self._rows_in(sb.staged_pages, sb.page_count) * sb.row_bytes
        end = chunk_count(sb)
        if sb.staged_pages == sb.page_count:
            return
        work = run_ordered(first, end, self._scratch, self._stage_chunk, threads=self._options.threads)
        with self._report.phase("stage") as count, closing(work):
            for index, digest in enumerate(work, first):
                self._digests.append(digest)
                chain = chain_next(chain, digest)
                self._count_read(index, count)
                self._report.pages_staged += self._chunk_pages(index)
                written_at_watermark += self._chunk_pages(index) * PAGE_BYTES
                if written_at_watermark >= self._options.watermark_bytes or index == end - 1:
                    self._move_watermark(min((index + 1) * CHUNK_PAGES, sb.page_count), chain)
                    written_at_watermark = 0
                self._progress("stage", count.bytes, total)

    def _move_watermark(self, staged_pages: int, chain: bytes) -> None:
        for target in self._targets:
            target.sync()
        self._write_superblock(self._sb.with_state(State.STAGING, staged_pages=staged_pages, source_digest=chain))

    def _verify(self) -> None:
        """Read the whole region back; a fault moves the watermark back to its chunk."""
        for target in self._targets:
            target.drop_cached()
        chain, total = chain_start(self._sb), self._sb.page_count * PAGE_BYTES
        work = RegionScan(self._sb, self._pages).chunks(threads=self._options.threads)
        with self._report.phase("verify") as count, closing(work):
            for index, chunk in enumerate(work):
                if chunk.fault_count or chunk.digest != self._digests[index]:
                    self._move_watermark(index * CHUNK_PAGES, chain)
                    fault = chunk.faults[0] if chunk.faults else f"rows of chunk {index} are not the source's"
                    raise ContractError(
                        f"{self._targets[0].path}: read back after staging: {fault}",
                        hint="run the same command again; it stages from there on. If it recurs, suspect the device",
                    )
                chain = chain_next(chain, chunk.digest)
                count.bytes += chunk.page_count * PAGE_BYTES
                self._progress("verify", count.bytes, total)
        self._report.bytes_verified = count.bytes

    def _scratch(self) -> _Scratch:
        rows = CHUNK_PAGES * self._sb.rows_per_page
        return _Scratch(
            row_buffers(self._source.table, rows), aligned_buffer(CHUNK_PAGES * PAGE_BYTES),
            self._pages.scratch(CHUNK_PAGES),
        )  # fmt: skip

    def _chunk_pages(self, index: int) -> int:
        return min(CHUNK_PAGES, self._sb.page_count - index * CHUNK_PAGES)

    def _rows_in(self, page_first: int, page_end: int) -> int:
        return self._codec.rows_in(page_first, page_end - page_first)

    def _read_chunk(self, index: int, scratch: _Scratch) -> tuple[Bytes, Bytes | None]:
        first = index * CHUNK_PAGES
        rows = self._codec.rows_in(first, self._chunk_pages(index))
        return self._source.read(first * self._sb.rows_per_page, rows, scratch.rows)

    def _hash_chunk(self, index: int, scratch: _Scratch) -> bytes:
        weights, scales = self._read_chunk(index, scratch)
        return chunk_digest(weights.data, None if scales is None else scales.data)

    def _stage_chunk(self, index: int, scratch: _Scratch) -> bytes:
        weights, scales = self._read_chunk(index, scratch)
        page_count = self._chunk_pages(index)
        pages = scratch.pages[: page_count * PAGE_BYTES]
        self._codec.encode(index * CHUNK_PAGES, page_count, weights, scales, pages)
        self._pages.write(index * CHUNK_PAGES, pages, scratch.striped)
        return chunk_digest(weights.data, None if scales is None else scales.data)

    def _count_read(self, index: int, count: PhaseCount) -> None:
        rows = self._codec.rows_in(index * CHUNK_PAGES, self._chunk_pages(index))
        count.bytes += rows * self._sb.row_bytes
        self._report.bytes_read += rows * self._sb.row_bytes

    @staticmethod
    def _stripe(sb: Superblock, index: int) -> Superblock:
        return replace(sb, stripe_index=index)

    def _write_superblock(self, sb: Superblock) -> None:
        for index, target in enumerate(self._targets):
            target.write_superblock(self._stripe(sb, index))
            self._report.bytes_written += SUPERBLOCK_PAGES * PAGE_BYTES
        self._sb = sb

    def _reported(self) -> StageReport:
        self._report.bytes_written += self._report.pages_staged * PAGE_BYTES
        self._report.source_digest = self._sb.source_digest.hex()
        return self._report
