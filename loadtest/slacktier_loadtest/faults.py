# SPDX-License-Identifier: Apache-2.0
"""What makes a run's figures void or its verdict bad, each as one sentence. Any of them makes the exit code 1."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slacktier_loadtest.bootstrap import Overhead
from slacktier_loadtest.figures import ArmFigures, BlockResult


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run is held to.

    lag_ms     p99 of the generator's lag; cpu is the share of a core that a generator process may use
    overhead_pct  of the mean TPOT against the baseline; None: not judged
    equal_answers each request's answer must be the same in every arm
    equal_rounds  and in every round: not where each round's prompts begin with something of its own
    equal_lengths each answer must have as many tokens as were asked for
    """

    lag_ms: float = 5.0
    cpu: float = 0.7
    overhead_pct: float | None = None
    equal_answers: bool = True
    equal_rounds: bool = True
    equal_lengths: bool = True


def faults(
    figures: Sequence[ArmFigures], overheads: Mapping[str, Overhead], limits: Limits, *, expected: int
) -> list[str]:
    """Sentences, the gravest first; expected requests are what one block sends."""
    return [
        *_failed(figures),
        *_unequal_counts(figures, expected),
        *_wrong_answers(figures, limits),
        *_server_faults(figures),
        *_unmeasured(figures),
        *generator_faults([block for figure in figures for block in figure.blocks], limits),
        *_too_slow(overheads, limits),
    ]


def _failed(figures: Sequence[ArmFigures]) -> list[str]:
    found = []
    for figure in figures:
        if figure.failures:
            ranked = sorted(figure.failures.items(), key=lambda item: -item[1])
            said = "; ".join(f"{text} ({count})" for text, count in ranked[:3])
            more = f"; and {len(ranked) - 3} more kinds" if len(ranked) > 3 else ""
            found.append(
                f"arm {figure.name}: {sum(figure.failures.values())} of {figure.sent} requests failed: {said}{more}"
            )
    return found


def _unequal_counts(figures: Sequence[ArmFigures], expected: int) -> list[str]:
    counts = {figure.name: [len(block.completed) for block in figure.blocks] for figure in figures}
    if all(count == expected for per_block in counts.values() for count in per_block):
        return []
    listed = "; ".join(f"{name} {', '.join(map(str, per_block))}" for name, per_block in counts.items())
    return [f"not every block completed the same {expected} requests: {listed}"]


def _wrong_answers(figures: Sequence[ArmFigures], limits: Limits) -> list[str]:
    found = []
    if limits.equal_lengths:
        for figure in figures:
            other = [
                each for block in figure.blocks for each in block.completed
                if each.record.completion_tokens not in (-1, each.max_tokens)
            ]  # fmt: skip
            if other:
                first = other[0]
                found.append(
                    f"arm {figure.name}: {len(other)} answers of another length than asked for, such as "
                    f"{first.record.completion_tokens} tokens instead of {first.max_tokens}"
                )
    return [*found, *(_unequal_answers(figures, limits) if limits.equal_answers else [])]


def _unequal_answers(figures: Sequence[ArmFigures], limits: Limits) -> list[str]:
    """Answers that differ from what most arms and rounds got to the same request."""
    answers: dict[tuple[int, str, str, int], Counter[int]] = defaultdict(Counter)
    given = [
        (
            figure.name,
            (0 if limits.equal_rounds else block.round_index, phase.name, each.session, each.turn_index),
            each.record.answer_crc,
        )
        for figure in figures
        for block in figure.blocks
        for phase in block.phases
        for each in phase.records.completed
    ]
    for _, request, crc in given:
        answers[request][crc] += 1
    usual = {request: crcs.most_common(1)[0][0] for request, crcs in answers.items()}
    other = Counter(name for name, request, crc in given if crc != usual[request])
    return [
        f"arm {name}: {count} answers differ from what the same requests got elsewhere" for name, count in other.items()
    ]


def _server_faults(figures: Sequence[ArmFigures]) -> list[str]:
    found = []
    for figure in figures:
        reports = [report for block in figure.blocks for report in block.reports]
        if wrong := sum(report.mismatched_rows for report in reports):
            found.append(f"arm {figure.name}: {wrong} rows differ from what was staged")
        if steps := sum(report.failed_steps for report in reports):
            found.append(f"arm {figure.name}: {steps} steps failed in the server")
    return found


def _unmeasured(figures: Sequence[ArmFigures]) -> list[str]:
    return [f"arm {figure.name}: no request was measured" for figure in figures if figure.ttft is None]


def generator_faults(blocks: Sequence[BlockResult], limits: Limits) -> list[str]:
    """Whether the generator was the bottleneck: then its own lateness is in every time."""
    loads = [load for block in blocks for phase in block.phases for load in phase.records.generators]
    if not loads:
        return []
    lag = max(loads, key=lambda load: load.lag_ms[1])
    busy = max(loads, key=lambda load: load.cpu)
    found = []
    if lag.lag_ms[1] > limits.lag_ms:
        found.append(
            f"the generator was the bottleneck: lag p99 {lag.lag_ms[1]:.1f} ms in one block, at most "
            f"{limits.lag_ms:g} ms is allowed; more generators (--workers) or fewer users"
        )
    if busy.cpu > limits.cpu:
        found.append(
            f"the generator was the bottleneck: {busy.cpu:.0%} of a core in one block, at most {limits.cpu:.0%} is "
            "allowed; more generators (--workers) or fewer users"
        )
    return found


def _too_slow(overheads: Mapping[str, Overhead], limits: Limits) -> list[str]:
    if limits.overhead_pct is None:
        return []
    return [
        f"arm {name}: mean TPOT {found.percent:+.1f} % against the baseline "
        f"[{found.interval[0]:+.1f}, {found.interval[1]:+.1f}], at most {limits.overhead_pct:+.1f} % is allowed"
        for name, found in overheads.items()
        if found.percent > limits.overhead_pct
    ]
