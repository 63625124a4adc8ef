# SPDX-License-Identifier: Apache-2.0
"""Blocks whose every time is given, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Sequence

from slacktier_cli.replay.metrics import Outcome, StreamRecord
from slacktier_loadtest.figures import BlockResult, PhaseResult
from slacktier_loadtest.records import BlockRecords, Finished, GeneratorLoad

MS = 1_000_000
IDLE = GeneratorLoad("host:1", (0.1, 0.5, 1.0), 1000, 0.1)


def answered(
    tpot_ms: float, *, tokens: int = 11, chunks: int | None = None, ttft_ms: float = 50.0, usage: bool = True,
    crc: int = 7,
) -> StreamRecord:  # fmt: skip
    """An answer whose chunks come evenly, so that TPOT is tpot_ms."""
    count = tokens if chunks is None else chunks
    gap = tpot_ms * (tokens - 1) / (count - 1) if count > 1 else 0.0
    times = [int((ttft_ms + index * gap) * MS) for index in range(count)]
    return StreamRecord(
        sent_ns=0, chunk_ns=times, prompt_tokens=100, completion_tokens=tokens if usage else -1, is_done=True,
        outcome=Outcome.COMPLETED, ended_ns=times[-1] + MS, answer_crc=crc, status=200,
    )  # fmt: skip


def broken(error: str = "HTTP 503: busy") -> StreamRecord:
    return StreamRecord(sent_ns=0, outcome=Outcome.FAILED, error=error)


def block(
    arm: str, round_index: int, records: Sequence[StreamRecord], *, seconds: float = 10.0,
    load: GeneratorLoad = IDLE, max_tokens: int = 11,
) -> BlockResult:  # fmt: skip
    """One request per session, in order."""
    finished = tuple(Finished(index, f"s{index}", 0, max_tokens, record) for index, record in enumerate(records))
    return BlockResult(round_index, arm, (PhaseResult("", BlockRecords(finished, seconds, (load,))),))
