# SPDX-License-Identifier: Apache-2.0
"""Blocks -> figures per arm and layer. Pure arithmetic; the report's JSON is made of these.

A figure of an arm's requests (TPOT, TTFT) is over all its measured requests. The first request of each user in a block
is warm-up and not measured: all users bring their histories along at the same moment, which no running service sees.
Only where a block is so short that no user finished another one, first requests are measured too, in all blocks alike.
A server-side figure is the median over
the arm's blocks of that block's figure: percentiles of different blocks cannot be merged, and one block that something
else on the machine disturbed must not decide. Each block's own figures are in the report too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from slacktier_cli.demo.arms import BASELINE, Arm
from slacktier_cli.demo.server_report import LayerReport, ServerReport
from slacktier_cli.demo.traffic import Served, Traffic
from slacktier_cli.replay.metrics import Summary, summarize


@dataclass(frozen=True, slots=True)
class BlockResult:
    """One arm's turn: what the client saw and what the server counted.

    first_counted  ordinal of the first request of each user that is measured: 1, or 0 where blocks are too short
    """

    round_index: int
    arm: Arm
    traffic: Traffic
    server: ServerReport
    first_counted: int = 1

    @property
    def counted(self) -> list[Served]:
        """Completed requests after each user's warm-up."""
        return [served for served in self.traffic.completed if served.ordinal >= self.first_counted]

    @property
    def measured(self) -> list[Served]:
        """Those of them that have a TPOT."""
        return [served for served in self.counted if served.record.tpot_ms is not None]


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """One layer in one arm, decode steps; times in ms, medians over blocks; None where nothing was measured."""

    layer_id: int
    tier: str
    cache_rows: int
    window_ms: float | None
    read_mean_ms: float | None
    read_p50_ms: float | None
    read_p99_ms: float | None
    stall_ms: float | None
    stall_p99_ms: float | None
    hit_rate: float | None
    pages_per_step: float | None
    lookups: int


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm over all its blocks.

    paired_pct  mean TPOT against the baseline's over the requests that both finished in the same round, in percent
    """

    arm: Arm
    blocks: tuple[BlockResult, ...]
    tpot: Summary | None
    ttft: Summary | None
    gaps: Summary | None
    step_ms: float | None
    step_p50_ms: float | None
    layers: tuple[LayerFigures, ...]
    completed: int
    warm_up: int
    without_tpot: int
    cut: int
    failed: int
    paired_count: int
    paired_pct: float | None

    @property
    def is_measured(self) -> bool:
        """Every block of the arm finished at least one request with a TPOT, and none failed."""
        return bool(self.blocks) and all(block.measured for block in self.blocks) and self.failed == 0


def with_enough_counted(blocks: Sequence[BlockResult]) -> tuple[BlockResult, ...]:
    """The blocks as they are, or all with first requests counted if one of them has nothing else to measure."""
    if all(block.measured for block in blocks):
        return tuple(blocks)
    return tuple(replace(block, first_counted=0) for block in blocks)


def arm_figures(arms: Sequence[Arm], blocks: Sequence[BlockResult], cache_rows: int) -> tuple[ArmFigures, ...]:
    """Figures of all arms in the order given; cache_rows is the budget of cached arms."""
    by_arm = {arm.name: tuple(block for block in blocks if block.arm.name == arm.name) for arm in arms}
    return tuple(_figures(arm, by_arm[arm.name], by_arm.get(BASELINE, ()), cache_rows) for arm in arms)


def _figures(
    arm: Arm, blocks: tuple[BlockResult, ...], baseline: tuple[BlockResult, ...], cache_rows: int
) -> ArmFigures:
    completed = sum(len(block.traffic.completed) for block in blocks)
    counted = [served for block in blocks for served in block.counted]
    measured = [served for block in blocks for served in block.measured]
    own_ms, baseline_ms = _paired(blocks, baseline)
    return ArmFigures(
        arm=arm,
        blocks=blocks,
        tpot=summarize(served.record.tpot_ms for served in measured),
        ttft=summarize(served.record.ttft_ms for served in counted),
        gaps=summarize(gap for served in counted for gap in served.record.gaps_ms()),
        step_ms=middle(block.server.step_ms.mean for block in blocks),
        step_p50_ms=middle(block.server.step_ms.p50 for block in blocks),
        layers=_layers(arm, blocks, cache_rows),
        completed=completed,
        warm_up=completed - len(counted),
        without_tpot=len(counted) - len(measured),
        cut=sum(block.traffic.cut_count for block in blocks),
        failed=sum(len(block.traffic.failed) for block in blocks),
        paired_count=len(own_ms),
        paired_pct=100 * (math.fsum(own_ms) / math.fsum(baseline_ms) - 1) if own_ms else None,
    )


def _paired(blocks: Sequence[BlockResult], baseline: Sequence[BlockResult]) -> tuple[list[float], list[float]]:
    """TPOT of the requests that an arm and the baseline both finished in the same round, in the same order."""
    own_ms, baseline_ms = [], []
    by_round = {block.round_index: _tpot_by_request(block) for block in baseline}
    for block in blocks:
        other = by_round.get(block.round_index, {})
        for request, tpot_ms in _tpot_by_request(block).items():
            if request in other:
                own_ms.append(tpot_ms)
                baseline_ms.append(other[request])
    return own_ms, baseline_ms


def _tpot_by_request(block: BlockResult) -> dict[tuple[int, int], float]:
    return {
        (served.user, served.ordinal): served.record.tpot_ms
        for served in block.measured
        if served.record.tpot_ms is not None
    }


def _layers(arm: Arm, blocks: Sequence[BlockResult], cache_rows: int) -> tuple[LayerFigures, ...]:
    if not blocks:
        return ()
    count = len(blocks[0].server.layers)
    return tuple(
        _layer([block.server.layers[index] for block in blocks], arm.cache_rows(index, cache_rows, count))
        for index in range(count)
    )


def _layer(reports: Sequence[LayerReport], cache_rows: int) -> LayerFigures:
    def over_blocks(figure: Callable[[LayerReport], float | None]) -> float | None:
        return middle(figure(report) for report in reports)

    lookups = sum(report.lookups for report in reports)
    hits = sum(report.hits + report.repeats for report in reports)
    return LayerFigures(
        layer_id=reports[0].layer_id,
        tier=reports[0].tier.value,
        cache_rows=cache_rows,
        window_ms=over_blocks(lambda report: report.window_ms),
        read_mean_ms=over_blocks(lambda report: report.read_ms.mean),
        read_p50_ms=over_blocks(lambda report: report.read_ms.p50),
        read_p99_ms=over_blocks(lambda report: report.read_ms.p99),
        stall_ms=over_blocks(lambda report: report.stall_ms.mean),
        stall_p99_ms=over_blocks(lambda report: report.stall_ms.p99),
        hit_rate=hits / lookups if lookups else None,
        pages_per_step=over_blocks(lambda report: report.pages_per_step),
        lookups=lookups,
    )


def middle(values: Iterable[float | None]) -> float | None:
    """Median of the values that are there, or None."""
    there = [value for value in values if value is not None]
    return median(there) if there else None
