# SPDX-License-Identifier: Apache-2.0
"""One staging job: a table to several replicas on one node, side by side, from one read of the source."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from slacktier.api import Part, TableSpec
from slacktier.errors import SlackTierError
from slacktier_tierd.node.shared_reads import SharedReads
from slacktier_tierd.node.table_source import open_source
from slacktier_tierd.report import StageReport
from slacktier_tierd.sources import RowSource
from slacktier_tierd.staging import StageOptions, stage

THREADS_PER_DEVICE: Final = 4
_TOLD_EVERY_S: Final = 0.25


class StageTarget(Part):
    """One replica: its stripes' paths in order."""

    replica: str
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    may_format: bool = False
    restage: bool = False


class StageJob(Part):
    """All replicas of one table that one node stages now."""

    table: TableSpec
    targets: Annotated[tuple[StageTarget, ...], Field(min_length=1)]
    threads: Annotated[int, Field(ge=1, le=20)] = THREADS_PER_DEVICE


class StageNews(Part):
    """What a job tells about one replica: progress while it runs, then once the outcome or the fault.

    bytes_read  from the source by the whole job so far, shared reads counted once
    """

    replica: str
    phase: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    outcome: str = ""
    epoch: int = 0
    digest: str = ""
    is_over: bool = False
    fault: str = ""
    is_refused: bool = False


@dataclass(slots=True)
class _Progress:
    phase: str = ""
    done: int = 0
    total: int = 0

    def __call__(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        self.phase, self.done, self.total = phase, done_bytes, total_bytes


class _Run:
    """The threads of a job."""

    def __init__(self, job: StageJob) -> None:
        self.job = job
        self.progress = {target.replica: _Progress() for target in job.targets}
        self.over: queue.SimpleQueue[StageNews] = queue.SimpleQueue()
        self.shared: SharedReads | None = None

    def start(self) -> None:
        """Raises ConfigError where the source is not what the table's spec says."""
        source = open_source(self.job.table)
        readers: Sequence[RowSource]
        if len(self.job.targets) > 1:
            self.shared = SharedReads(source, len(self.job.targets))
            readers = self.shared.readers()
        else:
            readers = [source]
        for target, reader in zip(self.job.targets, readers, strict=True):
            threading.Thread(target=self._stage, args=(target, reader), daemon=True).start()

    def _stage(self, target: StageTarget, source: RowSource) -> None:
        options = StageOptions(may_format=target.may_format, restage=target.restage, threads=self.job.threads)
        try:
            try:
                report = stage(source, [Path(p) for p in target.paths], options, self.progress[target.replica])
            finally:
                source.close()
            self.over.put(self._done(target, report))
        except SlackTierError as exc:
            hint = f" ({exc.hint})" if exc.hint else ""
            refused = type(exc).__name__ == "ConfigError"
            self.over.put(StageNews(replica=target.replica, is_over=True, fault=f"{exc}{hint}", is_refused=refused))
        except Exception as exc:  # a fault of ours ends this replica's staging and is told, not the job
            self.over.put(
                StageNews(replica=target.replica, is_over=True, fault=f"{type(exc).__name__}: {exc}")
            )  # fmt: skip

    def _done(self, target: StageTarget, report: StageReport) -> StageNews:
        return StageNews(
            replica=target.replica, outcome=report.outcome, epoch=report.epoch, digest=report.source_digest,
            bytes_read=report.bytes_read if self.shared is None else self.shared.bytes_read,
            bytes_written=report.bytes_written, is_over=True,
        )  # fmt: skip

    def news(self, replica: str) -> StageNews:
        now = self.progress[replica]
        read = now.done if self.shared is None and now.phase != "verify" else 0
        return StageNews(
            replica=replica, phase=now.phase, done_bytes=now.done, total_bytes=now.total,
            bytes_read=read if self.shared is None else self.shared.bytes_read,
        )  # fmt: skip


def run_stage_job(job: StageJob) -> Iterator[StageNews]:
    """Run a job; yields news of each replica until all are over.

    raises  ConfigError where the source cannot be opened; a replica's own fault is news of it
    """
    run = _Run(job)
    run.start()
    waiting = [target.replica for target in job.targets]
    told: dict[str, StageNews] = {}
    while waiting:
        try:
            over = run.over.get(timeout=_TOLD_EVERY_S)
        except queue.Empty:
            over = None
        if over is not None:
            waiting.remove(over.replica)
            yield over
            continue
        for replica in waiting:
            news = run.news(replica)
            if told.get(replica) != news:
                told[replica] = news
                yield news
