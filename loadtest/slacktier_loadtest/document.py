# SPDX-License-Identifier: Apache-2.0
"""The run as one JSON object. `arms` is what pipelines read and stays as it is; everything else stands beside it.

arms       [{name, tpot_ms {mean, p50, p95, p99, min, max}, ttft_ms {same}, total_s, completed, predicted_slowdown_ms}]
overheads  {arm: {tpot_pct, interval_pct, rounds_pct, is_tie, pairs, total_pct}} against `baseline`
details    {arm: what else was measured}
faults     sentences; ok is that there are none
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slacktier import __version__
from slacktier_cli.machine import describe_machine
from slacktier_loadtest.bootstrap import CONFIDENCE, Overhead, overhead
from slacktier_loadtest.compare import Outcome, RunOptions
from slacktier_loadtest.faults import faults
from slacktier_loadtest.figures import ArmFigures, BlockResult, arm_figures

Document = dict[str, Any]


def document(options: RunOptions, outcome: Outcome) -> Document:
    """Everything that the report shows."""
    figures = _figures(options, outcome)
    by_name = {figure.name: figure for figure in figures}
    baseline = by_name.get(options.baseline)
    overheads = _overheads(figures, baseline, options.seed)
    found = faults(figures, overheads, options.limits, expected=outcome.expected)
    found = [outcome.broken, *found] if outcome.broken else found
    missing = [name for name in options.arm_names if name not in by_name]
    if missing:
        found.append(f"arms that were not run: {', '.join(missing)}")
    return {
        "arms": [_arm(figure, outcome.predicted.get(figure.name)) for figure in figures],
        "ok": not found,
        "faults": found,
        "baseline": options.baseline,
        "confidence": CONFIDENCE,
        "overheads": {name: _overhead(found, by_name[name], baseline) for name, found in overheads.items()},
        "details": {figure.name: _details(figure) for figure in figures},
        "generator": _generator([block for figure in figures for block in figure.blocks], options),
        "scenario": options.scenario.model_dump(mode="json"),
        "workload": outcome.workload,
        "requests_per_block": outcome.expected,
        "engine": "emulated" if options.is_emulated else "server",
        "seed": options.seed,
        "max_tpot_overhead_pct": options.limits.overhead_pct,
        "notes": outcome.notes,
        "machine": describe_machine(options.out).as_dict(),
        "slacktier": __version__,
    }


def _figures(options: RunOptions, outcome: Outcome) -> list[ArmFigures]:
    """In the arms' order; arms without a block are left out."""
    by_arm = {name: [block for block in outcome.blocks if block.arm == name] for name in options.arm_names}
    return [arm_figures(name, blocks, options.scenario.slo) for name, blocks in by_arm.items() if blocks]


def _overheads(figures: Sequence[ArmFigures], baseline: ArmFigures | None, seed: int) -> dict[str, Overhead]:
    if baseline is None:
        return {}
    found = {
        figure.name: overhead(figure.blocks, baseline.blocks, seed=seed)
        for figure in figures
        if figure.name != baseline.name
    }
    return {name: value for name, value in found.items() if value is not None}


def _arm(figure: ArmFigures, predicted: float | None) -> Document:
    return {
        "name": figure.name,
        "tpot_ms": figure.tpot.as_dict() if figure.tpot else None,
        "ttft_ms": figure.ttft.as_dict() if figure.ttft else None,
        "total_s": figure.total_s,
        "completed": figure.completed,
        "predicted_slowdown_ms": predicted,
    }


def _overhead(found: Overhead, figure: ArmFigures, baseline: ArmFigures | None) -> Document:
    total = None if baseline is None or not baseline.total_s else 100 * (figure.total_s / baseline.total_s - 1)
    return {
        "tpot_pct": found.percent,
        "interval_pct": list(found.interval),
        "rounds_pct": list(found.rounds),
        "is_tie": found.is_tie,
        "pairs": found.pairs,
        "total_pct": total,
    }


def _details(figure: ArmFigures) -> Document:
    return {
        "sent": figure.sent,
        "failures": figure.failures,
        "without_tpot": figure.unmeasured,
        "output_tokens": figure.tokens,
        "output_tokens_per_s": figure.tokens / seconds if (seconds := sum(b.seconds for b in figure.blocks)) else None,
        "tokens_per_chunk": figure.tokens_per_chunk,
        "cached_prompt_share": figure.cached_share,
        "e2e_ms": figure.e2e.as_dict() if figure.e2e else None,
        "chunk_gap_ms": figure.gaps.as_dict() if figure.gaps else None,
        "tpot_ms_to_stream_end": figure.sglang_tpot.as_dict() if figure.sglang_tpot else None,
        "good_requests_per_s": figure.good_per_s,
        "good_share_of_sent": figure.good_share,
        "phases": {
            name: {"ttft_ms": ttft.as_dict() if ttft else None, "tpot_ms": tpot.as_dict() if tpot else None}
            for name, (ttft, tpot) in figure.phases.items()
        },
        "blocks": [_block(block) for block in figure.blocks],
    }


def _block(block: BlockResult) -> Document:
    tpots = sorted(each.record.tpot_ms for each in block.completed if each.record.tpot_ms is not None)
    ttfts = sorted(each.record.ttft_ms for each in block.completed if each.record.ttft_ms is not None)
    return {
        "round": block.round_index,
        "seconds": block.seconds,
        "completed": len(block.completed),
        "failed": len(block.failed),
        "tpot_ms": [round(value, 4) for value in tpots],
        "ttft_ms": [round(value, 4) for value in ttfts],
        "servers": [report.model_dump(mode="json") for report in block.reports],
    }


def _generator(blocks: Sequence[BlockResult], options: RunOptions) -> Document:
    """The worst of all blocks and processes."""
    loads = [load for block in blocks for phase in block.phases for load in phase.records.generators]
    worst: Mapping[str, float | None] = {
        "lag_ms_p50": max((load.lag_ms[0] for load in loads), default=None),
        "lag_ms_p99": max((load.lag_ms[1] for load in loads), default=None),
        "lag_ms_max": max((load.lag_ms[2] for load in loads), default=None),
        "cpu": max((load.cpu for load in loads), default=None),
    }
    return {
        **worst,
        "processes": len({load.process for load in loads}),
        "lag_ms_allowed": options.limits.lag_ms,
        "cpu_allowed": options.limits.cpu,
    }
