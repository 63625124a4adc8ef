# SPDX-License-Identifier: Apache-2.0
"""How sessions become requests: what a prompt holds, what is cut, who gets what in which round."""

from itertools import islice

import numpy as np
import pytest

from slacktier.errors import ConfigError
from slacktier_cli.demo.sessions import ReplayLimits, Session, Turn, Workload, session_requests
from slacktier_cli.traces import Role

LIMITS = ReplayLimits(history_tokens=6, turn_tokens=3, output_tokens=2)


def turn(role: Role, *tokens: int) -> Turn:
    return Turn(role, np.array(tokens, np.uint32))


def session(name: str = "s", base: int = 0) -> Session:
    """System 0-4, user 10-13, answer 20-22, tool 30-34, answer 40-41, tool 50, answer 60."""
    turns = (
        turn(Role.SYSTEM, *range(base, base + 5)),
        turn(Role.USER, *range(base + 10, base + 14)),
        turn(Role.ASSISTANT, *range(base + 20, base + 23)),
        turn(Role.TOOL, *range(base + 30, base + 35)),
        turn(Role.ASSISTANT, base + 40, base + 41),
        turn(Role.TOOL, base + 50),
        turn(Role.ASSISTANT, base + 60),
    )
    return Session(name, turns)


def test_prompt_is_the_one_before_its_answer_and_the_new_turn() -> None:
    requests = list(session_requests(session(), 0, LIMITS))
    assert [request.turn_index for request in requests] == [2, 4, 6]
    assert [request.answer.tolist() for request in requests] == [[20, 21], [40, 41], [60]]
    assert requests[0].prompt.tolist() == [3, 4, 10, 11, 12, 13]
    assert requests[1].prompt.tolist() == [*requests[0].prompt, 20, 21, 32, 33, 34]
    assert requests[2].prompt.tolist() == [*requests[1].prompt, 40, 41, 50]


def test_session_entered_midway_brings_its_last_history() -> None:
    first, *_ = session_requests(session(), 1, LIMITS)
    assert first.prompt.tolist() == [22, 30, 31, 32, 33, 34]
    assert first.answer.tolist() == [40, 41]


def test_every_round_has_its_own_order_and_repeats_with_the_seed() -> None:
    workload = Workload("w", [session(f"s{index}", 100 * index) for index in range(20)])

    def names(round_index: int, seed: int) -> list[str]:
        users = workload.users(4, round_index=round_index, seed=seed, limits=LIMITS)
        return [f"{request.session}/{request.turn_index}" for user in users for request in islice(user, 6)]

    assert names(0, 1) == names(0, 1)
    assert names(0, 1) != names(1, 1)
    assert names(0, 1) != names(0, 2)


def test_users_share_no_session_until_all_were_dealt() -> None:
    workload = Workload("w", [session(f"s{index}") for index in range(8)])
    users = workload.users(4, round_index=0, seed=3, limits=LIMITS)
    seen = [{request.session for request in islice(user, 4)} for user in users]
    assert sum(len(names) for names in seen) == len(set.union(*seen))


def test_more_users_than_sessions_share_them() -> None:
    users = Workload("w", [session()]).users(3, round_index=0, seed=0, limits=LIMITS)
    assert {next(user).session for user in users} == {"s"}


def test_answers_need_tokens_of_their_own_and_before_them() -> None:
    turns = (turn(Role.ASSISTANT, 1), turn(Role.ASSISTANT), turn(Role.USER, 2), turn(Role.ASSISTANT, 3))
    assert Session("s", turns).answers == (3,)


def test_workload_without_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="no session has an assistant turn"):
        Workload("w", [Session("s", (turn(Role.USER, 1),))])


def test_limits_below_two_tokens_are_refused() -> None:
    with pytest.raises(ConfigError, match="output tokens: 1"):
        ReplayLimits(history_tokens=6, turn_tokens=3, output_tokens=1)
