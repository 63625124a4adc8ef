# SPDX-License-Identifier: Apache-2.0
"""One block's traffic: users in a closed loop until the time is up, then everything still running is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from slacktier_cli.demo.sessions import ReplayRequest
from slacktier_cli.replay.metrics import Outcome, StreamRecord

Answer = TypeVar("Answer")


class Completes(Protocol):
    """What a block needs of a client."""

    async def complete(self, body: dict[str, Any]) -> StreamRecord: ...


@dataclass(frozen=True, slots=True)
class Served:
    """One request that ended by itself: the ordinal-th of this user in the block."""

    user: int
    ordinal: int
    record: StreamRecord


@dataclass(slots=True)
class Traffic:
    """What the client saw in one block.

    served     completed and failed requests; cut ones are only counted
    seconds    wall time; client_cpu is this process's CPU time as a share of it: near 1 the client is the limit
    """

    served: list[Served] = field(default_factory=list)
    cut_count: int = 0
    seconds: float = 0.0
    client_cpu: float = 0.0

    @property
    def completed(self) -> list[Served]:
        return [served for served in self.served if served.record.outcome is Outcome.COMPLETED]

    @property
    def failed(self) -> list[Served]:
        return [served for served in self.served if served.record.outcome is Outcome.FAILED]


def completion_body(model: str, request: ReplayRequest, first_token: int) -> dict[str, Any]:
    """The request's JSON: token ids in, and the recorded answer for the server to produce.

    first_token  stands before the prompt and is another one in each block, so that no prompt is found in a prefix
                 cache that earlier blocks filled
    """
    return {
        "model": model,
        "prompt": [first_token, *request.prompt.tolist()],
        "max_tokens": int(request.answer.size),
        "ignore_eos": True,
        "slacktier": {"output_token_ids": request.answer.tolist()},
    }


async def run_traffic(
    client: Completes,
    users: Sequence[Iterator[ReplayRequest]],
    *,
    model: str,
    first_token: int,
    seconds: float,
    at_end: Callable[[], Awaitable[Answer]],
) -> tuple[Traffic, Answer]:
    """Run the users for `seconds`; a user whose request failed stops.

    at_end   called when the time is up, before anything is cut: the moment to ask the server for its figures
    returns  what the client saw, and what at_end answered
    """
    traffic = Traffic()
    began, cpu_began = time.perf_counter(), time.process_time()
    tasks = [
        asyncio.create_task(_user(client, index, bodies(requests, model, first_token), traffic))
        for index, requests in enumerate(users)
    ]
    try:
        await asyncio.wait(tasks, timeout=seconds)
        traffic.seconds = time.perf_counter() - began
        traffic.client_cpu = (time.process_time() - cpu_began) / traffic.seconds
        answer = await at_end()
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, asyncio.CancelledError):
            traffic.cut_count += 1
        elif isinstance(outcome, BaseException):
            raise outcome
    return traffic, answer


def bodies(requests: Iterator[ReplayRequest], model: str, first_token: int) -> Iterator[dict[str, Any]]:
    return (completion_body(model, request, first_token) for request in requests)


async def _user(client: Completes, index: int, requests: Iterator[dict[str, Any]], traffic: Traffic) -> None:
    for ordinal, body in enumerate(requests):
        record = await client.complete(body)
        traffic.served.append(Served(index, ordinal, record))
        if record.outcome is Outcome.FAILED:
            return
