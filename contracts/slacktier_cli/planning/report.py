# SPDX-License-Identifier: Apache-2.0
"""A finished plan as one JSON object: what `slacktier plan FILE --json` prints."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from slacktier.plan_file import PlanFile
from slacktier.window import GIB, Decision, LayerDecision, Problem
from slacktier.window_text import gib
from slacktier_cli.planning.memory import HostMemory, host_memory
from slacktier_cli.planning.what_if import Case


@dataclass(frozen=True, slots=True)
class Report:
    """A plan with everything that its renderings show."""

    source: str
    plan: PlanFile
    problem: Problem
    decision: Decision
    notes: tuple[str, ...]
    cases: tuple[Case, ...]

    @property
    def memory(self) -> HostMemory:
        return host_memory(self.problem, self.decision)


def memory_sentence(report: Report) -> str:
    """What the plan frees and how to give it to the engine."""
    memory = report.memory
    if memory.freed_bytes <= 0:
        return f"host memory: nothing is freed; tables and cache take {gib(memory.table_bytes + memory.cache_bytes)}"
    text = (
        f"host memory: {gib(memory.freed_bytes)} of the {gib(memory.stock_bytes)} that the tables take today are freed"
    )
    if report.plan.unified_memory:
        return f"{text}, for weights and KV cache: the GPU shares this memory"
    if not memory.hicache_size_gb:
        return text
    return (
        f"{text}; to use it for KV cache start SGLang with "
        f"--enable-hierarchical-cache --hicache-size {memory.hicache_size_gb} (GB of each of {memory.ranks} ranks)"
    )


def as_json(report: Report) -> dict[str, Any]:
    """The whole report; quantities carry their unit in the key, what is unknown is null."""
    memory = report.memory
    return {
        "source": report.source,
        "model": report.plan.model,
        "sessions": report.plan.sessions,
        "step_ms": report.problem.step_ms,
        "slo_pct": report.problem.slo_pct,
        **decision_json(report.decision),
        "host_memory": {
            "stock_gib": memory.stock_bytes / GIB,
            "tables_gib": memory.table_bytes / GIB,
            "cache_gib": memory.cache_bytes / GIB,
            "freed_gib": memory.freed_bytes / GIB,
            "hicache_size_gb": None if report.plan.unified_memory else memory.hicache_size_gb,
        },
        "notes": list(report.notes),
        "what_if": [_case_json(case) for case in report.cases],
    }


def decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "fits": decision.fits,
        "proven": decision.proven,
        "summary": decision.summary,
        "slowdown_ms": _known(decision.slowdown_ms),
        "slowdown_pct": _known(decision.slowdown_pct),
        "slo_margin_ms": _known(decision.slo_margin_ms),
        "cost": decision.cost,
        "cache_rows_spare": decision.cache_rows_spare,
        "host_cache_bytes_spare": decision.host_cache_bytes_spare,
        "reads_per_s": dict(decision.reads_per_s),
        "layers": [_layer_json(layer) for layer in decision.layers],
        "warnings": list(decision.warnings),
        "changes": list(decision.changes),
    }


def _case_json(case: Case) -> dict[str, Any]:
    memory = host_memory(case.problem, case.decision)
    return {
        "case": case.name,
        **decision_json(case.decision),
        "freed_gib": memory.freed_bytes / GIB,
        "notes": list(case.notes),
    }


def _layer_json(layer: LayerDecision) -> dict[str, Any]:
    return {
        "layer_id": layer.layer_id,
        "device": layer.device,
        "tier": layer.tier.value,
        "cache_rows": layer.cache_rows,
        "host_cache_rows": layer.host_cache_rows,
        "pages": layer.pages,
        "read_ms": layer.read_ms,
        "window_ms": layer.window_ms,
        "stall_ms": layer.stall_ms,
        "margin_ms": layer.margin_ms,
        "sentence": layer.sentence,
    }


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
