# SPDX-License-Identifier: Apache-2.0
"""From what was observed to a plan: the window rule's problem, its answer, and whether to follow it now. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slacktier.crd_placement import LayerDecision, PlacementLayer, Plan, TierChoice
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier.window import Decision, decide, predict
from slacktier.window_model import Device, Layer, MissCurve, Place, Prediction, Problem, ReadModel
from slacktier_operator.observed import Observed, PodView, PoolView

_STEPS_MIN = 50  # decode steps in a report before its figures count
_BETTER_SHARE = 0.25  # of the SLO: how much faster a plan must be to move what already meets it


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan to follow, or why there is none.

    plan     None where nothing fits or the input is wrong
    apply    follow it now; else it is only shown
    reason   CamelCase, message: a sentence
    current  what the layers in force cost by today's figures; None where they are not in force or not possible any more
    """

    plan: Plan | None
    apply: bool
    reason: str
    message: str
    current: Prediction | None = None


def make_verdict(seen: Observed) -> Verdict:
    """Decide anew, and whether to move: never within the stabilization window, never without need."""
    try:
        problem = problem_of(seen)
        decision = decide(problem)
    except ConfigError as exc:
        return Verdict(None, False, "InvalidInput", str(exc))
    current = _current(seen, problem)
    if not decision.layers:
        changes = "; ".join(decision.changes)
        return Verdict(None, False, "DoesNotFit", f"{decision.summary}. {changes}".rstrip(". "), current)
    plan = _plan(seen, decision, len(seen.pods))
    if not decision.fits and not seen.in_force:
        changes = "; ".join(decision.changes)
        return Verdict(plan, False, "SloNotMet", f"{decision.summary}. {changes}".rstrip(". "), current)
    return _follow(seen, problem, plan, current, decision)


def _follow(
    seen: Observed, problem: Problem, plan: Plan, current: Prediction | None, decision: Decision
) -> Verdict:  # fmt: skip
    if seen.in_force and same_places(seen.in_force, plan.layers):
        return Verdict(plan, True, "InForce", decision.summary, current)
    if seen.in_force and current is not None:
        gain_ms = current.slowdown_ms - plan.slowdown_ms
        over = current.slowdown_ms > problem.slo_ms
        if not over and gain_ms <= _BETTER_SHARE * problem.slo_ms:
            return Verdict(plan, False, "InForce", "what is in force meets the SLO; moving would gain little", current)
        left_s = seen.changed_s + seen.spec.stabilization_window_seconds - seen.now_s
        if left_s > 0:
            return Verdict(
                plan, False, "Stabilizing", f"another plan is better by {gain_ms:.2f} ms; it may be followed "
                f"{seen.spec.stabilization_window_seconds} s after the last change "
                "(spec.stabilizationWindowSeconds)", current,
            )  # fmt: skip
    if seen.spec.approval == "Manual" and seen.spec.approved_plan != plan.id:
        return Verdict(
            plan, False, "WaitingForApproval", f"set spec.approvedPlan to {plan.id} to follow status.plan", current
        )
    return Verdict(plan, True, "Accepted", decision.summary, current)


def same_places(first: Sequence[LayerDecision], second: Sequence[LayerDecision]) -> bool:
    def places(layers: Sequence[LayerDecision]) -> list[tuple[int, str, int]]:
        return [(layer.layer_id, layer.pool, layer.cache_rows) for layer in layers]

    return places(first) == places(second)


def problem_of(seen: Observed) -> Problem:
    """The window rule's input: measured windows, pages and read models where there are any, the spec's where not.

    raises  ConfigError  a layer without a table, no pool that could hold one
    """
    spec = seen.spec
    devices = tuple(_device(seen, pool, pool.read) for pool in seen.pools if pool.read is not None)
    if not devices:
        raise ConfigError(
            "no tier pool with a read model is there", hint="name one in spec.pools, or give its spec.read"
        )
    fixed = {layer.layer_id: _fixed_rows(seen, layer) for layer in spec.layers}
    step_ms = (
        _mean([pod.report.step_ms for pod in _reporting(seen) if pod.report], spec.step_ms)
        if _moved(seen)
        else spec.step_ms
    )
    layers = tuple(_layer(seen, layer, fixed[layer.layer_id], step_ms) for layer in spec.layers)
    return Problem(
        layers=layers,
        devices=devices,
        step_ms=step_ms,
        ranks=spec.ranks,
        slo_pct=spec.slo_percent,
        cache_rows=spec.cache_rows_per_rank - sum(rows or 0 for rows in fixed.values()),
    )


def _moved(seen: Observed) -> bool:
    return bool(_reporting(seen))


def _fixed_rows(seen: Observed, layer: PlacementLayer) -> int | None:
    share = layer.cache_share
    return None if share is None else math.floor(share * seen.spec.cache_rows_per_rank)


def _layer(seen: Observed, layer: PlacementLayer, fixed: int | None, step_ms: float) -> Layer:
    table = seen.tables.get(layer.layer_id)
    if table is None:
        raise ConfigError(f"layer {layer.layer_id}: the LookupTable {seen.spec.table} has no such layer")
    curve = MissCurve(tuple((point.cache_rows, point.pages) for point in layer.misses))
    curve = _scaled(seen, layer.layer_id, curve)
    if fixed is not None:
        curve = MissCurve.flat(curve.pages(fixed))
    window = min(_window(seen, layer), step_ms)
    tiers = frozenset() if layer.tier is TierChoice.AUTO else frozenset({Tier(layer.tier.value)})
    return Layer(
        layer.layer_id, window, curve, row_count=table.rows, row_bytes=table.row_bytes, tiers=tiers
    )  # fmt: skip


def _reporting(seen: Observed) -> list[PodView]:
    return [pod for pod in seen.pods if pod.report and pod.report.ready and pod.report.steps >= _STEPS_MIN]


def _mean(values: Sequence[float], otherwise: float) -> float:
    known = [value for value in values if value > 0]
    return sum(known) / len(known) if known else otherwise


def _window(seen: Observed, layer: PlacementLayer) -> float:
    """Measured by the serving pods, the mean of all; the spec's until they do."""
    figures = [pod.report.layers.get(layer.layer_id) for pod in _reporting(seen) if pod.report]
    return _mean([each.window_us / 1e3 for each in figures if each], layer.window_ms)


def _scaled(seen: Observed, layer_id: int, curve: MissCurve) -> MissCurve:
    """The curve through what the pods really read: their load is rarely the one that it was measured at."""
    ratios = []
    for pod in _reporting(seen):
        figures = pod.report.layers.get(layer_id) if pod.report else None
        expected = curve.pages(pod.bound_rows.get(layer_id, 0))
        if figures and pod.report and expected > 0 and figures.pages:
            ratios.append(figures.pages / pod.report.steps / expected)
    if not ratios:
        return curve
    ratio = sum(ratios) / len(ratios)
    return MissCurve(tuple((rows, pages * ratio) for rows, pages in curve.points))


def _device(seen: Observed, pool: PoolView, read: ReadModel) -> Device:
    """The pool as the rule's device: as many instances read one member as its busiest one gets."""
    members = [member for member in pool.members if member.ready]
    held = {replica.member for replica in seen.replicas if replica.pool == pool.name}
    free = [member for member in members if member.free_bytes > 0 or member.name in held]
    places = min(len(free), seen.spec.replicas) if not pool.local else len(free)
    instances = max(1, math.ceil(len(seen.pods) / max(1, places)))
    # Copies that are there already have taken their bytes from what is free.
    mine = sum(
        seen.tables[r.layer_id].region_bytes for r in seen.replicas if r.pool == pool.name and r.layer_id in seen.tables
    )
    capacity = max((member.free_bytes for member in free), default=0) + mine
    return Device(
        pool.name, pool.tier, read, units=pool.units, instances=instances, capacity_bytes=capacity,
        reads_per_s=pool.reads_per_s, cost_per_gib=pool.cost_per_gib,
    )  # fmt: skip


def _current(seen: Observed, problem: Problem) -> Prediction | None:
    """What the layers in force cost by today's figures; None where a layer or its pool is gone."""
    names = {device.name for device in problem.devices}
    layer_ids = {layer.layer_id for layer in problem.layers}
    if {d.layer_id for d in seen.in_force} != layer_ids or any(d.pool not in names for d in seen.in_force):
        return None
    places = [Place(layer.layer_id, layer.pool, layer.cache_rows) for layer in seen.in_force]
    # A fixed share is no part of the search's budget, so the whole one counts here.
    return predict(replace(problem, cache_rows=seen.spec.cache_rows_per_rank), places)


def _plan(seen: Observed, decision: Decision, instances: int) -> Plan:
    fixed = {layer.layer_id: _fixed_rows(seen, layer) for layer in seen.spec.layers}
    layers = tuple(
        LayerDecision(
            layer_id=layer.layer_id,
            tier=layer.tier.value,
            pool=layer.device,
            window_ms=round(layer.window_ms, 4),
            read_ms=round(layer.read_ms, 4),
            margin_ms=round(layer.margin_ms, 4),
            stall_ms=round(layer.stall_ms, 4),
            cache_rows=layer.cache_rows if fixed[layer.layer_id] is None else fixed[layer.layer_id] or 0,
            reason=layer.sentence,
        )
        for layer in decision.layers
    )
    text = json.dumps([[layer.layer_id, layer.pool, layer.cache_rows] for layer in layers])
    return Plan(
        id=hashlib.sha256(text.encode()).hexdigest()[:12],
        layers=layers,
        slowdown_ms=round(decision.slowdown_ms, 4),
        slowdown_percent=round(decision.slowdown_pct, 3),
        instances=instances,
        made_at="",
    )
