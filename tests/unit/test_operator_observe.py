# SPDX-License-Identifier: Apache-2.0
"""What the operator takes from the cluster and from its clock when it looks at a placement."""

from __future__ import annotations

from typing import Any, cast

import pytest
from operator_cases import PLACEMENT, spec_of

from slacktier.crd_placement import TablePlacementStatus
from slacktier_operator.context import Context
from slacktier_operator.kube import Kube
from slacktier_operator.observe import observe
from slacktier_operator.settings import OperatorSettings
from slacktier_operator.status import seconds_of, timestamp
from slacktier_operator.store import Store
from slacktier_operator.tierd_client import TierdClient
from slacktier_operator.tierd_state import TierdState
from slacktier_operator.work_queue import WorkQueue

NOW_S = 1_800_000_000.0


def context_at(now_s: float) -> Context:
    """Nothing is in the cluster or at tierd, and nothing is called."""
    nobody: Any = None
    state = TierdState(cast(TierdClient, nobody), lambda kind, name: None)
    return Context(
        OperatorSettings("http://tierd"), cast(Kube, nobody), cast(TierdClient, nobody), state, Store(), WorkQueue(),
        now_s=lambda: now_s,
    )  # fmt: skip


@pytest.mark.parametrize(("clock_s", "expected_s"), [(NOW_S + 60, NOW_S), (NOW_S - 86_400, NOW_S - 86_400)])
def test_a_clock_set_back_holds_a_move_for_one_window_and_not_for_a_day(clock_s: float, expected_s: float) -> None:
    before = TablePlacementStatus(changed_at=timestamp(NOW_S))
    assert seconds_of(before.changed_at) == NOW_S
    seen = observe(context_at(clock_s), PLACEMENT, spec_of(), before)
    assert (seen.changed_s, seen.now_s) == (expected_s, clock_s)
