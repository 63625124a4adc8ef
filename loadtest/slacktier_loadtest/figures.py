# SPDX-License-Identifier: Apache-2.0
"""Records -> figures per arm. Definitions of TTFT, TPOT and gaps are StreamRecord's; here they become one figure each.

TPOT, TTFT and end-to-end times are over all requests of all blocks of an arm; `min` and `max` are of the blocks' means,
as in the paper. What could not be measured is counted by reason and never averaged in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from slacktier_cli.demo.server_report import ServerReport
from slacktier_cli.replay.metrics import StreamRecord, Summary, summarize
from slacktier_loadtest.records import BlockRecords, Finished
from slacktier_loadtest.scenario import Slo

_ERROR_SHOWN: Final = 120


@dataclass(frozen=True, slots=True)
class PhaseResult:
    """One phase of one block."""

    name: str
    records: BlockRecords


@dataclass(frozen=True, slots=True)
class BlockResult:
    """One arm's turn in one round: what its clients saw, and what the servers counted, where they tell."""

    round_index: int
    arm: str
    phases: tuple[PhaseResult, ...]
    reports: tuple[ServerReport, ...] = ()

    @property
    def finished(self) -> list[Finished]:
        return [each for phase in self.phases for each in phase.records.finished]

    @property
    def completed(self) -> list[Finished]:
        return [each for phase in self.phases for each in phase.records.completed]

    @property
    def failed(self) -> list[Finished]:
        return [each for phase in self.phases for each in phase.records.failed]

    @property
    def seconds(self) -> float:
        return sum(phase.records.seconds for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Spread:
    """A time in ms over an arm's requests; minimum and maximum of its blocks' means."""

    mean: float
    p50: float
    p95: float
    p99: float
    minimum: float
    maximum: float

    def as_dict(self) -> dict[str, float]:
        return {
            "mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99, "min": self.minimum,
            "max": self.maximum,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm over all its blocks; None where nothing was measured.

    total_s        mean time of a block
    unmeasured     completed requests without a TPOT, by reason
    failures       failed requests, by what was said
    tokens_per_chunk  of completed requests with usage
    cached_share   prompt tokens that the server found in its prefix cache, where it tells
    good_per_s     requests per second within the SLO; good_share of those sent; None without an SLO
    sglang_tpot    the same requests by SGLang's definition of an answer's end
    phases         TTFT and TPOT of each phase, where there are several
    """

    name: str
    blocks: tuple[BlockResult, ...]
    tpot: Spread | None
    ttft: Spread | None
    e2e: Spread | None
    gaps: Summary | None
    sglang_tpot: Summary | None
    total_s: float
    completed: int
    sent: int
    unmeasured: dict[str, int]
    failures: dict[str, int]
    tokens: int
    tokens_per_chunk: float | None
    cached_share: float | None
    good_per_s: float | None
    good_share: float | None
    phases: dict[str, tuple[Spread | None, Spread | None]]


def arm_figures(name: str, blocks: Sequence[BlockResult], slo: Slo) -> ArmFigures:
    """Figures of one arm's blocks; there is at least one."""
    completed = [each.record for block in blocks for each in block.completed]
    sent = sum(len(block.finished) for block in blocks)
    seconds = sum(block.seconds for block in blocks)
    counted = [record for record in completed if record.completion_tokens > 0]
    tokens, chunks = sum(r.completion_tokens for r in counted), sum(len(r.chunk_ns) for r in counted)
    good = sum(is_good(record, slo) for record in completed) if _has_limits(slo) else None
    return ArmFigures(
        name=name,
        blocks=tuple(blocks),
        tpot=spread(blocks, lambda record: record.tpot_ms),
        ttft=spread(blocks, lambda record: record.ttft_ms),
        e2e=spread(blocks, lambda record: record.e2e_ms),
        gaps=summarize(gap for record in completed for gap in record.gaps_ms()),
        sglang_tpot=summarize(record.sglang_tpot_ms for record in completed),
        total_s=fmean(block.seconds for block in blocks),
        completed=len(completed),
        sent=sent,
        unmeasured=dict(Counter(reason for record in completed if (reason := unmeasured(record)))),
        failures=dict(Counter(_shown(each.record.error) for block in blocks for each in block.failed)),
        tokens=tokens,
        tokens_per_chunk=tokens / chunks if chunks else None,
        cached_share=_cached_share(completed),
        good_per_s=good / seconds if good is not None and seconds else None,
        good_share=good / sent if good is not None and sent else None,
        phases=_phases(blocks),
    )


def spread(blocks: Iterable[BlockResult], figure: Callable[[StreamRecord], float | None]) -> Spread | None:
    """One figure over the completed requests of some blocks, or None if none has it."""
    by_block = [summarize(figure(each.record) for each in block.completed) for block in blocks]
    means = [summary.mean for summary in by_block if summary is not None]
    whole = summarize(figure(each.record) for block in blocks for each in block.completed)
    if whole is None:
        return None
    return Spread(whole.mean, whole.p50, whole.p95, whole.p99, min(means), max(means))


def unmeasured(record: StreamRecord) -> str:
    """Why a completed request has no TPOT, or ""."""
    if record.tpot_ms is not None:
        return ""
    if record.completion_tokens < 0:
        return "no usage"
    return "one token" if record.completion_tokens <= 1 else "one chunk"


def is_good(record: StreamRecord, slo: Slo) -> bool:
    """Within every limit given. An answer of one token has no time per further token, so that limit cannot be missed;
    one whose TPOT could not be measured for another reason is not good."""
    pairs = [(record.ttft_ms, slo.ttft_ms), (record.e2e_ms, slo.e2e_ms)]
    if unmeasured(record) != "one token":
        pairs.append((record.tpot_ms, slo.tpot_ms))
    return all(limit is None or (value is not None and value <= limit) for value, limit in pairs)


def _cached_share(records: Sequence[StreamRecord]) -> float | None:
    told = [record for record in records if record.cached_tokens >= 0 and record.prompt_tokens > 0]
    return sum(r.cached_tokens for r in told) / sum(r.prompt_tokens for r in told) if told else None


def _has_limits(slo: Slo) -> bool:
    return any(limit is not None for limit in (slo.ttft_ms, slo.tpot_ms, slo.e2e_ms))


def _shown(error: str) -> str:
    return error if len(error) <= _ERROR_SHOWN else f"{error[: _ERROR_SHOWN - 3]}..."


def _phases(blocks: Sequence[BlockResult]) -> dict[str, tuple[Spread | None, Spread | None]]:
    names = list(dict.fromkeys(phase.name for block in blocks for phase in block.phases))
    if len(names) < 2:
        return {}
    found = {}
    for name in names:
        part = [
            BlockResult(block.round_index, block.arm, tuple(phase for phase in block.phases if phase.name == name))
            for block in blocks
        ]
        found[name] = (spread(part, lambda record: record.ttft_ms), spread(part, lambda record: record.tpot_ms))
    return found
