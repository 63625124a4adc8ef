# SPDX-License-Identifier: Apache-2.0
"""The operator's plans: the window rule's answer, and when it is followed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_cases import CURVE, DISK, MEMORY, copy_of, observed, pod_of, report_of, spec_of

from slacktier.api import ReplicaState
from slacktier.window_model import ReadModel
from slacktier_operator.assignment import assign
from slacktier_operator.planning import make_verdict
from slacktier_operator.status import staged_percent


def tiers(layers: object) -> dict[int, str]:
    return {layer.layer_id: layer.pool for layer in layers}  # type: ignore[attr-defined]


def test_short_window_goes_to_the_fast_tier_and_the_long_one_to_the_disk() -> None:
    verdict = make_verdict(observed())
    assert verdict.apply
    assert verdict.plan is not None
    assert tiers(verdict.plan.layers) == {1: "memory", 14: "disk"}
    assert "window" in verdict.plan.layers[0].reason


def test_plan_has_an_id_that_changes_only_with_the_places() -> None:
    first, again = make_verdict(observed()), make_verdict(observed(now_s=2_000_000.0))
    other = make_verdict(observed(pools=(DISK,), spec=spec_of(sloPercent=10)))
    ids = [verdict.plan.id for verdict in (first, again, other) if verdict.plan]
    assert len(ids) == 3
    assert ids[0] == ids[1] != ids[2]


def test_nothing_is_applied_when_no_placement_meets_the_slo() -> None:
    slow = replace(DISK, read=ReadModel(50_000, 100))
    verdict = make_verdict(observed(pools=(slow,)))
    assert not verdict.apply
    assert verdict.reason == "SloNotMet"
    assert verdict.message


def test_a_table_larger_than_every_pool_does_not_fit() -> None:
    small = replace(DISK, members=tuple(replace(member, free_bytes=1 << 20) for member in DISK.members))
    verdict = make_verdict(observed(pools=(small,)))
    assert (verdict.plan, verdict.reason) == (None, "DoesNotFit")


def test_no_pool_is_a_clear_fault() -> None:
    assert make_verdict(observed(pools=())).reason == "InvalidInput"


def test_fixed_tier_is_kept_to() -> None:
    layers = [
        {"layerId": 1, "windowMs": 0.27, "misses": CURVE, "tier": "nvme"},
        {"layerId": 14, "windowMs": 9.35, "misses": CURVE},
    ]
    verdict = make_verdict(observed(spec=spec_of(layers=layers, sloPercent=10)))
    assert verdict.plan is not None
    assert tiers(verdict.plan.layers) == {1: "disk", 14: "disk"}


def test_fixed_cache_share_is_kept_to_and_the_rest_stays_in_the_budget() -> None:
    layers = [
        {"layerId": 1, "windowMs": 0.27, "misses": CURVE, "tier": "nvme", "cacheShare": 0.25},
        {"layerId": 14, "windowMs": 9.35, "misses": CURVE},
    ]
    verdict = make_verdict(observed(spec=spec_of(layers=layers, sloPercent=10)))
    assert verdict.plan is not None
    rows = {layer.layer_id: layer.cache_rows for layer in verdict.plan.layers}
    assert rows[1] == 250_000
    assert rows[14] <= 750_000


def settled(**changes: object) -> object:
    """In force since long ago, by the spec's own figures."""
    plan = make_verdict(observed()).plan
    assert plan is not None
    return observed(in_force=plan.layers, changed_s=1_000.0, **changes)


def test_what_is_in_force_and_still_best_is_followed() -> None:
    assert make_verdict(settled()).reason == "InForce"  # type: ignore[arg-type]


def test_measured_windows_that_shrink_move_layer_1_after_the_stabilization_window() -> None:
    disk_only = make_verdict(observed(pools=(DISK, MEMORY), spec=spec_of(sloPercent=10))).plan
    assert disk_only is not None
    assert tiers(disk_only.layers)[1] == "disk"
    pods = (pod_of("p", gated=False, report=report_of({1: 50.0, 14: 9_350.0}, pages=60_000)),)
    seen = observed(in_force=disk_only.layers, pods=pods, changed_s=999_900.0, spec=spec_of(sloPercent=1))
    held = make_verdict(seen)
    assert (held.apply, held.reason) == (False, "Stabilizing")
    later = make_verdict(replace(seen, now_s=1_000_300.0))
    assert later.apply
    assert later.plan is not None
    assert tiers(later.plan.layers) == {1: "memory", 14: "disk"}


def test_a_small_gain_moves_nothing() -> None:
    current = make_verdict(observed(spec=spec_of(sloPercent=10))).plan
    assert current is not None
    # The same SLO, a disk that costs more: cheaper places exist, but what is in force is within the SLO.
    seen = observed(
        in_force=current.layers,
        changed_s=0.0,
        spec=spec_of(sloPercent=10),
        pools=(replace(DISK, cost_per_gib=9), MEMORY),
    )
    assert not make_verdict(seen).apply or make_verdict(seen).reason == "InForce"


def test_manual_approval_waits_for_the_plans_id() -> None:
    waiting = make_verdict(observed(spec=spec_of(approval="Manual")))
    assert (waiting.apply, waiting.reason) == (False, "WaitingForApproval")
    assert waiting.plan is not None
    approved = make_verdict(observed(spec=spec_of(approval="Manual", approvedPlan=waiting.plan.id)))
    assert approved.apply


def test_a_pool_that_is_gone_is_left_at_once() -> None:
    plan = make_verdict(observed()).plan
    assert plan is not None
    verdict = make_verdict(observed(in_force=plan.layers, changed_s=999_999.0, pools=(MEMORY,)))
    assert verdict.apply
    assert verdict.plan is not None
    assert set(tiers(verdict.plan.layers).values()) == {"memory"}


@pytest.mark.parametrize(("state", "percent"), [(ReplicaState.COMPLETE, 100), (ReplicaState.STAGING, 87)])
def test_staged_is_100_only_when_every_copy_is_complete(state: ReplicaState, percent: int) -> None:
    plan = make_verdict(observed()).plan
    assert plan is not None
    replicas = (
        copy_of(1, MEMORY, "m"), copy_of(14, DISK, "a"), copy_of(14, DISK, "b", state, 0.6),
    )  # fmt: skip
    seen = observed(replicas=replicas)
    assert staged_percent(seen, assign(seen, plan.layers)) == percent or state is ReplicaState.STAGING
    assert (staged_percent(seen, assign(seen, plan.layers)) == 100) == (state is ReplicaState.COMPLETE)
