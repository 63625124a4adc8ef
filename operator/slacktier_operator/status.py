# SPDX-License-Identifier: Apache-2.0
"""Conditions, and a placement's status, from what was observed and decided. Pure; the reasons are for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from slacktier.crd_model import Condition, ConditionStatus
from slacktier.crd_placement import BoundPod, LayerDecision, Plan, TablePlacementStatus
from slacktier_operator.assignment import Assignment
from slacktier_operator.names import Key, instance_name
from slacktier_operator.observed import Observed, ReplicaView
from slacktier_operator.planning import Verdict


def timestamp(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Unix time of a timestamp; 0 for none."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp() if text else 0.0


def merged(
    before: Sequence[Condition], found: Sequence[tuple[str, bool | None, str, str]], generation: int, now_s: float
) -> tuple[Condition, ...]:  # fmt: skip
    """(type, status, reason, message) as conditions; a time of transition changes only with the status."""
    old = {condition.type: condition for condition in before}
    states = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}
    conditions = []
    for kind, value, reason, message in found:
        same = kind in old and old[kind].status is states[value]
        since = old[kind].last_transition_time if same else timestamp(now_s)
        conditions.append(
            Condition(
                type=kind, status=states[value], reason=reason, message=message[:32768],
                last_transition_time=since, observed_generation=generation,
            )
        )  # fmt: skip
    return tuple(conditions)


def short_rows(rows: int) -> str:
    """1500000 -> 1.5M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if rows >= size:
            return f"{rows / size:.2f}".rstrip("0").rstrip(".") + unit
    return str(rows)


def placement_status(
    seen: Observed, verdict: Verdict, layers: Sequence[LayerDecision], assignment: Assignment | None,
    before: TablePlacementStatus, generation: int, changed_s: float, model: str,
) -> TablePlacementStatus:  # fmt: skip
    """The whole status of a placement."""
    shown = _with_replicas(seen, layers, assignment)
    slowdown = _slowdown(seen, verdict, layers)
    pending = verdict.plan if verdict.plan is not None and not verdict.apply else None
    bound = _bound_pods(seen, assignment)
    return TablePlacementStatus(
        observed_generation=generation,
        conditions=merged(before.conditions, _conditions(seen, verdict, layers, assignment), generation, seen.now_s),
        layers=shown,
        plan=_dated(pending, before.plan, seen.now_s),
        slowdown_ms=slowdown[0] if slowdown else None,
        slowdown_percent=slowdown[1] if slowdown else None,
        staged_percent=staged_percent(seen, assignment),
        bound_pods=bound,
        pods=len(seen.pods),
        model=model,
        tiers=",".join(f"L{layer.layer_id}={layer.tier}" for layer in layers),
        cache=",".join(f"L{layer.layer_id}={short_rows(layer.cache_rows)}" for layer in layers),
        slowdown=f"{slowdown[1]:.2f}%" if slowdown else "",
        changed_at=timestamp(changed_s) if changed_s else "",
    )


def _slowdown(seen: Observed, verdict: Verdict, layers: Sequence[LayerDecision]) -> tuple[float, float] | None:
    """(ms, % of a step) of what is in force, by today's figures."""
    if not layers:
        return None
    if verdict.apply and verdict.plan is not None:
        return verdict.plan.slowdown_ms, verdict.plan.slowdown_percent
    if verdict.current is None:
        return None
    return round(verdict.current.slowdown_ms, 4), round(100 * verdict.current.slowdown_ms / seen.spec.step_ms, 3)


def _dated(plan: Plan | None, before: Plan | None, now_s: float) -> Plan | None:
    if plan is None:
        return None
    made_at = before.made_at if before is not None and before.id == plan.id else timestamp(now_s)
    return plan.model_copy(update={"made_at": made_at})


def staged_percent(seen: Observed, assignment: Assignment | None) -> int:
    """Of the copies that should exist, all together; 100 only when every one is complete."""
    if assignment is None or not assignment.replicas:
        return 0
    copies = {replica.name: replica for replica in seen.replicas}
    done = [_progress(copies.get(wanted.name)) for wanted in assignment.replicas]
    share = sum(done) / len(done)
    return 100 if all(each == 1 for each in done) else min(99, int(100 * share))


def _progress(replica: ReplicaView | None) -> float:
    if replica is None:
        return 0.0
    return 1.0 if replica.complete else min(replica.progress, 0.999)


def _with_replicas(
    seen: Observed, layers: Sequence[LayerDecision], assignment: Assignment | None
) -> tuple[LayerDecision, ...]:  # fmt: skip
    wanted = assignment.replicas if assignment else ()
    return tuple(
        layer.model_copy(update={"replicas": tuple(w.name for w in wanted if w.layer_id == layer.layer_id)[:4]})
        for layer in layers
    )


def _bound_pods(seen: Observed, assignment: Assignment | None) -> tuple[BoundPod, ...]:
    bindings = assignment.bindings if assignment else ()
    return tuple(
        BoundPod(
            namespace=each.pod.key.namespace, name=each.pod.key.name, node=each.pod.node,
            binding=instance_name(Key(*each.pod.key)), ready=bool(each.pod.report and each.pod.report.ready),
        )
        for each in bindings
    )  # fmt: skip


def _conditions(
    seen: Observed, verdict: Verdict, layers: Sequence[LayerDecision], assignment: Assignment | None
) -> list[tuple[str, bool | None, str, str]]:
    staged = staged_percent(seen, assignment)
    reporting = [pod for pod in seen.pods if pod.report and pod.report.steps]
    attached = [pod for pod in seen.pods if pod.report and pod.report.ready]
    accepted = verdict.plan is not None and (verdict.apply or verdict.reason in ("InForce", "Stabilizing"))
    broken = _broken(seen, assignment)
    serving = bool(layers) and _every_layer_has_a_copy(seen, layers)
    found: list[tuple[str, bool | None, str, str]] = [
        ("Staged", staged == 100, "AllCopiesComplete" if staged == 100 else "Staging", f"{staged} % of the copies"),
        (
            "WindowsMeasured",
            bool(reporting),
            "ReportedByPods" if reporting else "FromSpec",
            f"{len(reporting)} of {len(seen.pods)} pods report windows and reads"
            if reporting else "no pod reports yet: windows and miss curves are those of the spec",
        ),
        ("PlanAccepted", accepted, verdict.reason, verdict.message),
        (
            "TierReady",
            serving,
            "CopiesReadable" if serving else "NoCompleteCopy",
            "every layer has a complete copy" if serving else "a layer has no complete copy yet",
        ),
        (
            "EngineAttached",
            bool(seen.pods) and len(attached) == len(seen.pods),
            "AllPodsReady" if seen.pods and len(attached) == len(seen.pods) else "WaitingForPods",
            f"{len(attached)} of {len(seen.pods)} pods read their tables",
        ),
        ("Degraded", bool(broken), "CopiesMissing" if broken else "AsWanted", broken),
    ]  # fmt: skip
    if seen.spec.suspend:
        found.append(("Suspended", True, "SpecSuspend", "spec.suspend: nothing is staged, moved or bound"))
    ready = accepted and serving and not seen.spec.suspend
    reason = (
        "Serving" if ready else ("Suspended" if seen.spec.suspend else verdict.reason if not accepted else "Staging")
    )
    return [("Ready", ready, reason, verdict.message if not serving else "every layer can be read"), *found]


def _every_layer_has_a_copy(seen: Observed, layers: Sequence[LayerDecision]) -> bool:
    complete = {(replica.layer_id, replica.pool) for replica in seen.replicas if replica.complete}
    return all((layer.layer_id, layer.pool) in complete for layer in layers)


def _broken(seen: Observed, assignment: Assignment | None) -> str:
    lost = [f"{r.name}: {r.state.value} {r.message}".strip() for r in seen.replicas if r.broken]
    return "; ".join([*(assignment.short if assignment else ()), *lost])[:4096]
