# SPDX-License-Identifier: Apache-2.0
"""A block's users run in a closed loop until the time is up; what was still running is cut and counted."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest

from slacktier_cli.demo.sessions import ReplayRequest
from slacktier_cli.demo.traffic import Traffic, run_traffic
from slacktier_cli.replay.metrics import Outcome, StreamRecord


class ScriptedClient:
    """Answers at once while `answers` last, then never."""

    def __init__(self, answers: list[Outcome]) -> None:
        self.answers = answers
        self.bodies: list[dict[str, Any]] = []

    async def complete(self, body: dict[str, Any]) -> StreamRecord:
        self.bodies.append(body)
        if not self.answers:
            await asyncio.Event().wait()
        return StreamRecord(sent_ns=0, outcome=self.answers.pop(0))


def requests(name: str) -> Iterator[ReplayRequest]:
    return (ReplayRequest(name, index, np.array([7, 8], np.uint32), np.array([index], np.uint32)) for index in count())


def run(client: ScriptedClient, users: int = 1) -> tuple[Traffic, str]:
    async def at_end() -> str:
        return "report"

    return asyncio.run(
        run_traffic(
            client, [requests(f"s{u}") for u in range(users)], model="m", first_token=1005, seconds=0.05, at_end=at_end
        )
    )


def test_users_go_on_until_the_time_is_up_and_the_rest_is_cut() -> None:
    client = ScriptedClient([Outcome.COMPLETED] * 3)
    traffic, answer = run(client, users=2)
    assert answer == "report"
    assert (len(traffic.completed), traffic.cut_count, len(traffic.failed)) == (3, 2, 0)
    assert traffic.seconds >= 0.05


def test_request_carries_tokens_the_recorded_answer_and_the_blocks_own_first_token() -> None:
    client = ScriptedClient([])
    run(client)
    assert client.bodies == [
        {
            "model": "m", "prompt": [1005, 7, 8], "max_tokens": 1, "ignore_eos": True,
            "slacktier": {"output_token_ids": [0]},
        }
    ]  # fmt: skip


def test_user_stops_at_its_first_failure() -> None:
    client = ScriptedClient([Outcome.COMPLETED, Outcome.FAILED])
    traffic, _ = run(client)
    assert (len(traffic.completed), len(traffic.failed), traffic.cut_count) == (1, 1, 0)
    assert len(client.bodies) == 2


def test_error_of_the_last_question_ends_the_block_and_drops_its_requests() -> None:
    client = ScriptedClient([])

    async def at_end() -> str:
        raise RuntimeError("no report")

    async def block() -> None:
        await run_traffic(client, [requests("s")], model="m", first_token=1, seconds=0.01, at_end=at_end)

    with pytest.raises(RuntimeError, match="no report"):
        asyncio.run(block())
