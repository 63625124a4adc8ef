# SPDX-License-Identifier: Apache-2.0
"""One step on the clock: the window rule's stalls, what the process loses and gives back, and failed lookups.

A virtual clock and a scripted core, so that every microsecond is the test's.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulated_support import LAYOUT, SEED, ScriptedCore, VirtualClock

from slacktier.errors import ConfigError, ContractError, SlackTierError, TierUnavailableError
from slacktier.pattern import pattern_seed
from slacktier_emulated.profile import StepTimes
from slacktier_emulated.step import LayerTable, LookupFailedError, StepRecord, StepRunner

TIMES = StepTimes(29.4, (0.27, 9.35))
IDS = [np.arange(6, dtype=np.int64), np.arange(4, dtype=np.int64)]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def core(clock: VirtualClock) -> ScriptedCore:
    return ScriptedCore(clock)


def runner(core: ScriptedCore, *, rank: int = 0, tp: int = 1, seed: int | None = SEED) -> StepRunner:
    tables = [
        LayerTable(layer_id, 256, 8, None if seed is None else pattern_seed(seed, layer_id), "nvme")
        for layer_id in LAYOUT.layer_ids
    ]
    return StepRunner(core, tables, rank=rank, tp=tp, clock=core.clock)


def run(core: ScriptedCore, **options: int) -> tuple[StepRecord, float]:
    """The step's record, and its length in ms as planned."""
    record = runner(core).run(IDS, TIMES, **options)
    return record, (record.end_ns - record.begin_ns) / 1e6


# The paper's Table 3: read times of both layers, and the slowdown that its Eq. 1 predicts.
@pytest.mark.parametrize(
    ("arrive_1", "arrive_14", "slowdown"),
    [(0.2, 9.0, 0.0), (0.4, 9.0, 0.13), (0.9, 9.0, 0.63), (0.9, 12.0, 2.65), (1.5, 15.0, 5.65), (2.5, 15.0, 5.65)],
)
def test_stalls_follow_the_window_rule(core: ScriptedCore, arrive_1: float, arrive_14: float, slowdown: float) -> None:
    core.arrivals_us = [arrive_1 * 1000, arrive_14 * 1000]
    record, step_ms = run(core)
    assert step_ms - TIMES.step_ms == pytest.approx(slowdown, abs=1e-6)
    assert sum(layer.stall_us for layer in record.layers) / 1000 == pytest.approx(slowdown, abs=1e-3)


def test_layer_one_stall_gives_layer_fourteen_more_time(core: ScriptedCore) -> None:
    core.arrivals_us = [2500.0, 11_000.0]
    record, _ = run(core)
    assert [layer.stall_us for layer in record.layers] == pytest.approx([2230.0, 0.0])


def test_late_wake_up_of_the_process_is_no_stall(core: ScriptedCore) -> None:
    core.arrivals_us = [200.0, 5000.0]
    core.clock.wakes_late_us = 900.0
    record, step_ms = run(core)
    assert [layer.stall_us for layer in record.layers] == [0.0, 0.0]
    assert step_ms == pytest.approx(TIMES.step_ms)


def test_what_the_step_before_overran_is_given_back_after_the_last_lookup(core: ScriptedCore) -> None:
    assert run(core, owed_ns=4_000_000)[1] == pytest.approx(25.4)
    # Never more than there is compute left: the windows stay what they are.
    assert run(core, owed_ns=90_000_000)[1] == pytest.approx(9.35)


def test_lookups_of_all_layers_begin_before_anything_else_and_the_step_is_closed(core: ScriptedCore) -> None:
    runner(core).run(IDS, TIMES, on_begun=lambda: core.calls.append("outputs sent"))
    assert core.calls == ["begin", "outputs sent", "wait 0", "gather 0", "wait 1", "gather 1", "end"]


def test_every_row_is_compared_with_the_pattern_and_other_ranks_rows_must_be_zero(core: ScriptedCore) -> None:
    record = runner(core).run(IDS, TIMES)
    assert [layer.checked for layer in record.layers] == [6, 4]
    # This core answers for all ranks, so as rank 0 of 2 it hands out rows that should have been zero.
    with pytest.raises(LookupFailedError, match="differ from the test pattern"):
        runner(core, tp=2).run(IDS, TIMES)


def test_wrong_byte_fails_the_step_and_names_the_row(core: ScriptedCore) -> None:
    core.wrong_row = 3
    with pytest.raises(LookupFailedError, match=r"layer 1: 1 of 6 rows differ .* row 3") as caught:
        runner(core).run(IDS, TIMES)
    assert caught.value.mismatched == {1: 1, 14: 1}
    assert caught.value.reasons == {1: "RowMismatch", 14: "RowMismatch"}
    assert core.calls[-1] == "end"


def test_table_without_a_pattern_is_read_but_not_compared(core: ScriptedCore) -> None:
    core.wrong_row = 3
    record = runner(core, seed=None).run(IDS, TIMES)
    assert [layer.checked for layer in record.layers] == [0, 0]


def test_failed_layer_fails_the_step_after_the_others_were_waited_for(core: ScriptedCore) -> None:
    core.faults[0] = TierUnavailableError("disk gone", tier="nvme", operation="read", target="/a", errno=5)
    with pytest.raises(LookupFailedError, match="layer 1: disk gone") as caught:
        runner(core).run(IDS, TIMES)
    assert caught.value.reasons == {1: "TierUnavailableErrno5"}
    assert core.calls == ["begin", "wait 0", "wait 1", "gather 1", "end"]


def test_both_faults_are_told(core: ScriptedCore) -> None:
    core.faults = {0: ContractError("bad checksum"), 1: ConfigError("odd")}
    with pytest.raises(LookupFailedError, match="layer 1: bad checksum; layer 14: odd"):
        runner(core).run(IDS, TIMES)


def test_failed_lookup_names_each_layer_once() -> None:
    faults = {1: SlackTierError("disk gone"), 14: SlackTierError("layer 14 page 3: bad"), 4: SlackTierError("layer 40")}
    assert str(LookupFailedError(dict(faults))) == "layer 1: disk gone; layer 14 page 3: bad; layer 4: layer 40"
