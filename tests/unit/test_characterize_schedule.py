# SPDX-License-Identifier: Apache-2.0
"""The order in which a server with many sessions uses a trace's tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktier.errors import ConfigError
from slacktier_cli.characterize.schedule import Schedule, interleave, one_by_one
from slacktier_cli.traces import Role, Trace


def trace_of(sessions: list[list[tuple[Role, int]]]) -> Trace:
    """Sessions as lists of (role, length); token i has id i."""
    turns = [(session, role, length) for session, turns in enumerate(sessions) for role, length in turns]
    lengths = np.array([length for _, _, length in turns])
    per_session = np.bincount([session for session, _, _ in turns], weights=lengths).astype(np.int64)
    return Trace(
        tokens=np.arange(lengths.sum(), dtype=np.uint32),
        session_offsets=np.concatenate([[0], np.cumsum(per_session)]),
        turn_session=np.array([session for session, _, _ in turns]),
        turn_role=np.array([role for _, role, _ in turns], np.uint8),
        turn_start=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        turn_len=lengths,
        vocab_size=int(lengths.sum()),
        session_source=np.zeros(len(sessions), np.int64),
        source_names=("made",),
        session_group=("",) * len(sessions),
        session_name=tuple(map(str, range(len(sessions)))),
    )


P, D = Role.USER, Role.ASSISTANT


def steps_of(schedule: Schedule) -> list[list[int]]:
    order = schedule.order.tolist()
    return [order[a:b] for a, b in zip(schedule.steps, schedule.steps[1:], strict=False)]


def test_slots_prefill_what_is_pending_then_decode_one_token_each() -> None:
    # Tokens 0-4: two of prompt, three decoded. Tokens 5-9: one, one decoded, two of prompt, one decoded.
    trace = trace_of([[(P, 2), (D, 3)], [(P, 1), (D, 1), (P, 2), (D, 1)]])
    in_order = next(seed for seed in range(9) if np.random.default_rng(seed).permutation(2)[0] == 0)
    schedule = interleave(trace, np.arange(2), slots=2, seed=in_order)
    assert steps_of(schedule) == [[0, 1, 2, 5, 6], [3, 7, 8, 9], [4]]
    assert schedule.decode_tokens.tolist() == [2, 2, 1]
    assert schedule.full_steps().tolist() == [True, True, False]


def test_finished_session_is_replaced_in_the_next_round_by_the_next_one() -> None:
    trace = trace_of([[(P, 1), (D, 1)], [(P, 1), (D, 3)], [(P, 1), (D, 1)], [(P, 1), (D, 1), (P, 4)]])
    seed = next(s for s in range(99) if np.random.default_rng(s).permutation(4).tolist() == [0, 1, 2, 3])
    schedule = interleave(trace, np.arange(4), slots=2, seed=seed)
    assert steps_of(schedule) == [[0, 1, 2, 3], [6, 7, 4], [8, 9, 5], [10, 11, 12, 13]]
    assert schedule.decode_tokens.tolist() == [2, 2, 2, 0]


def test_shuffle_is_numpys_permutation_of_the_sessions_asked_for() -> None:
    trace = trace_of([[(P, 1), (D, 1)] for _ in range(6)])
    wanted = np.array([5, 1, 3, 2])
    schedule = interleave(trace, wanted, slots=1, seed=7)
    dealt = wanted[np.random.default_rng(7).permutation(4)]
    assert schedule.order.tolist() == one_by_one(trace, dealt).tolist()


def test_idle_session_keeps_its_slot_and_its_order() -> None:
    turns = [(P, 1), (D, 2)] * 30
    trace = trace_of([turns, turns])
    busy = interleave(trace, np.arange(2), slots=1, seed=3)
    idle = interleave(trace, np.arange(2), slots=1, seed=3, idle_steps=5)
    assert idle.order.tolist() == busy.order.tolist()
    both = interleave(trace, np.arange(2), slots=2, seed=3, idle_steps=5)
    assert both.decode_tokens.tolist().count(1) > 20
    assert sorted(both.order.tolist()) == list(range(180))


def test_more_slots_than_sessions_are_refused() -> None:
    with pytest.raises(ConfigError, match="3 sessions at a time, the trace has 2"):
        interleave(trace_of([[(P, 1)], [(D, 1)]]), np.arange(2), slots=3, seed=1)


def plain_interleave(trace: Trace, sessions: list[int], slots: int) -> list[list[int]]:
    """Round by round, slot by slot, one token at a time."""
    decode = trace.decode_mask
    waiting = [list(range(trace.session_offsets[s], trace.session_offsets[s + 1])) for s in sessions]
    open_sessions: list[list[int]] = [[] for _ in range(slots)]
    steps = []
    while waiting or any(open_sessions):
        step = []
        for slot in range(slots):
            if not open_sessions[slot] and waiting:
                open_sessions[slot] = waiting.pop(0)
            while open_sessions[slot]:
                step.append(open_sessions[slot].pop(0))
                if decode[step[-1]]:
                    break
        steps.append(step)
    return steps


turn_lists = st.lists(st.tuples(st.sampled_from([P, D, Role.TOOL]), st.integers(1, 4)), min_size=1, max_size=5)


@settings(max_examples=60)
@given(st.lists(turn_lists, min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 99))
def test_schedule_equals_a_loop_over_rounds_and_slots(
    sessions: list[list[tuple[Role, int]]], slots: int, seed: int
) -> None:
    trace = trace_of(sessions)
    slots = min(slots, len(sessions))
    schedule = interleave(trace, np.arange(len(sessions)), slots=slots, seed=seed)
    shuffled = np.random.default_rng(seed).permutation(len(sessions)).tolist()
    expected = plain_interleave(trace, shuffled, slots)
    assert steps_of(schedule) == expected
    assert schedule.decode_tokens.tolist() == [int(trace.decode_mask[step].sum()) for step in expected]
