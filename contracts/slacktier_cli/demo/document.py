# SPDX-License-Identifier: Apache-2.0
"""A finished run -> the report's JSON object. Times in ms, rates in [0, 1], absent figures null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from slacktier import __version__
from slacktier_cli.demo.arms import BASELINE
from slacktier_cli.demo.clock_check import ClockCheck
from slacktier_cli.demo.placement import Placement
from slacktier_cli.demo.results import ArmFigures, BlockResult, LayerFigures
from slacktier_cli.machine import Machine

FORMAT: Final = "slacktier-demo-1"


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One layer's table as it was staged; full_rows are the released model's."""

    layer_id: int
    rows: int
    full_rows: int
    region_bytes: int
    was_reused: bool

    @property
    def is_scaled(self) -> bool:
        return self.rows != self.full_rows


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Rows read after the blocks, straight through the native path, to check more of them."""

    rows_checked: int
    mismatched_rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """All that a report is made of.

    workload, settings, timings   what was replayed, how it was asked for, seconds per part of the run
    clock                         per layer of one cached block; clock_arm names its arm, "" if no arm is cached
    """

    tables: tuple[TableFacts, ...]
    figures: tuple[ArmFigures, ...]
    placement: Placement
    clock_arm: str
    clock: Mapping[int, ClockCheck]
    sweep: SweepResult | None
    backend: str
    backend_reason: str
    machine: Machine
    workload: Mapping[str, Any]
    settings: Mapping[str, Any]
    timings: Mapping[str, float]

    @property
    def blocks(self) -> list[BlockResult]:
        return [block for figure in self.figures for block in figure.blocks]

    @property
    def rows_checked(self) -> int:
        return sum(block.server.rows_checked for block in self.blocks) + (self.sweep.rows_checked if self.sweep else 0)

    @property
    def mismatched_rows(self) -> int:
        swept = self.sweep.mismatched_rows if self.sweep else 0
        return sum(block.server.mismatched_rows for block in self.blocks) + swept

    @property
    def faults(self) -> list[str]:
        """Why the run is no success, one sentence each; empty if it is one."""
        faults = [f"{self.mismatched_rows} rows differ from the table's pattern"] if self.mismatched_rows else []
        for figure in self.figures:
            faults += arm_faults(figure)
        return faults


def arm_faults(figure: ArmFigures) -> list[str]:
    """Why an arm's figures are not good."""
    failed = [served for block in figure.blocks for served in block.traffic.failed]
    faults = []
    if failed:
        faults.append(f"arm {figure.arm.name}: {len(failed)} requests failed, the first with: {failed[0].record.error}")
    if any(not block.measured for block in figure.blocks) or not figure.blocks:
        faults.append(
            f"arm {figure.arm.name}: no request with two tokens ended in a block; --block-seconds makes it longer"
        )
    return faults


def document(run: Run) -> dict[str, Any]:
    """The report as one JSON object."""
    swept = run.sweep.rows_checked if run.sweep else 0
    return {
        "format": FORMAT,
        "slacktier": __version__,
        "engine": "emulated",
        "rows_checked": run.rows_checked,
        "mismatched_rows": run.mismatched_rows,
        "rows_checked_serving": run.rows_checked - swept,
        "sweep": asdict(run.sweep) if run.sweep else None,
        "backend": run.backend,
        "backend_reason": run.backend_reason,
        "decision": decision_text(run.placement),
        "placement": placement_json(run.placement),
        "tables": [{**asdict(table), "scaled": table.is_scaled} for table in run.tables],
        "arms": {figure.arm.name: arm_json(figure) for figure in run.figures},
        "clock_check": clock_json(run),
        "faults": run.faults,
        "workload": dict(run.workload),
        "settings": dict(run.settings),
        "machine": run.machine.as_dict(),
        "timings_s": {name: round(seconds, 2) for name, seconds in run.timings.items()},
        "warnings": warnings(run),
        "notes": notes(run),
    }


def decision_text(placement: Placement) -> str:
    """The decision in sentences with the numbers in them."""
    decision = placement.decision
    sentences = [decision.summary, *(layer.sentence for layer in decision.layers), measured_text(placement)]
    return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in sentences if sentence) + "."


def measured_text(placement: Placement) -> str:
    """What the decided placement cost over HTTP, or "" if no arm ran it."""
    measured = placement.measured
    if measured is None or measured.tpot is None or measured.paired_pct is None:
        return ""
    name, tpot_ms = measured.arm.name, measured.tpot.mean
    cost = "the baseline itself" if name == BASELINE else f"{measured.paired_pct:+.1f} % against {BASELINE}"
    return f"measured at the client with these places (arm {name}): {tpot_ms:.2f} ms per output token, {cost}"


def placement_json(placement: Placement) -> dict[str, Any]:
    decision, problem = placement.decision, placement.problem
    return {
        "fits": decision.fits,
        "slo_pct": problem.slo_pct,
        "step_ms": problem.step_ms,
        "slowdown_ms": finite(decision.slowdown_ms),
        "slowdown_pct": finite(decision.slowdown_pct),
        "layers": [{**asdict(layer), "tier": layer.tier.value} for layer in decision.layers],
        "warnings": list(decision.warnings),
        "changes": list(decision.changes),
        "read_models": {device.name: {"tier": device.tier.value, **asdict(device.read)} for device in problem.devices},
        "miss_curves": {
            str(layer.layer_id): [list(point) for point in layer.misses.points] for layer in problem.layers
        },
        "measured_arm": placement.measured.arm.name if placement.measured else None,
        "measured": measured_text(placement),
        "predictions": [asdict(prediction) for prediction in placement.predictions],
    }


def arm_json(figure: ArmFigures) -> dict[str, Any]:
    return {
        "title": figure.arm.title,
        "emulated_device": figure.arm.is_emulated_device,
        "tpot_ms": figure.tpot.as_dict() if figure.tpot else None,
        "ttft_ms": figure.ttft.as_dict() if figure.ttft else None,
        "chunk_gap_ms": figure.gaps.as_dict() if figure.gaps else None,
        "tpot_vs_dram": {"paired_requests": figure.paired_count, "percent": figure.paired_pct},
        "server_step_ms": {"mean": figure.step_ms, "p50": figure.step_p50_ms},
        "requests": {
            "completed": figure.completed,
            "warm_up": figure.warm_up,
            "without_tpot": figure.without_tpot,
            "cut": figure.cut,
            "failed": figure.failed,
        },
        "layers": {str(layer.layer_id): layer_json(layer) for layer in figure.layers},
        "blocks": [block_json(block) for block in figure.blocks],
    }


def layer_json(layer: LayerFigures) -> dict[str, Any]:
    return {
        "tier": layer.tier,
        "cache_rows": layer.cache_rows,
        "window_ms": layer.window_ms,
        "read_ms": {"mean": layer.read_mean_ms, "p50": layer.read_p50_ms, "p99": layer.read_p99_ms},
        "stall_ms": layer.stall_ms,
        "stall_p99_ms": layer.stall_p99_ms,
        "hit_rate": layer.hit_rate,
        "pages_per_step": layer.pages_per_step,
        "lookups": layer.lookups,
    }


def block_json(block: BlockResult) -> dict[str, Any]:
    measured = [served.record.tpot_ms for served in block.measured if served.record.tpot_ms is not None]
    return {
        "round": block.round_index,
        "seconds": round(block.traffic.seconds, 3),
        "client_cpu": round(block.traffic.client_cpu, 3),
        "tpot_ms_mean": math.fsum(measured) / len(measured) if measured else None,
        "measured": len(measured),
        "cut": block.traffic.cut_count,
        "server": block.server.model_dump(mode="json"),
    }


def clock_json(run: Run) -> dict[str, Any] | None:
    if not run.clock_arm:
        return None
    return {
        "arm": run.clock_arm,
        "agrees_within_points": max(abs(check.difference_points) for check in run.clock.values()),
        "layers": {
            str(layer_id): {**asdict(check), "difference_points": check.difference_points}
            for layer_id, check in run.clock.items()
        },
    }


def notes(run: Run) -> list[str]:
    """What a reader must know before drawing conclusions."""
    tp, profile = run.settings["tp"], run.settings["profile"]
    rank = "it looks up every row" if tp == 1 else f"it is one rank of {tp} and looks up that rank's stripe of the rows"
    lines = [
        f"The engine is emulated: it spends each layer's compute time by waiting, as the profile {profile} "
        f"says, and does its lookups for real; {rank}. The decision is for one such disk per rank.",
        "Every block starts with an empty row cache and an empty prefix cache.",
        "The first request of each user in a block is warm-up, counted and not measured, since all users bring their "
        "histories along at once.",
        "Requests that were still running at a block's end were cut and counted, not measured.",
        "Server-side figures are medians over an arm's blocks; TPOT and TTFT are over all its measured requests.",
    ]
    if any(table.is_scaled for table in run.tables):
        lines.insert(
            1,
            "The tables are scaled down, so different n-grams share rows more often: hit rates are the scaled table's "
            "and higher than a full table's.",
        )
    if any(figure.arm.is_emulated_device for figure in run.figures):
        lines.append("Arms named after a paper's device are emulated: DRAM whose answers a delay model holds back.")
    return lines


def warnings(run: Run) -> list[str]:
    """What makes this run's figures worse than another's."""
    found = []
    load, cores = run.settings["load_average"], run.machine.cores
    if load > cores:
        found.append(
            f"The machine was busy: {load:.1f} runnable threads on {cores} cores before the run began. Means and high "
            "percentiles hold that too; medians, which decide, hold less of it."
        )
    if any(block.first_counted == 0 for block in run.blocks):
        found.append(
            "In some block no user finished a second request, so first requests are measured too: TPOT and TTFT hold "
            "the blocks' starts, when all users bring their histories along. Give longer blocks (--block-seconds)."
        )
    return found


def finite(value: float) -> float | None:
    """JSON knows no infinity."""
    return value if math.isfinite(value) else None
