# SPDX-License-Identifier: Apache-2.0
"""Many clients at once, some of them bad: the others' answers stay what they are alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest
from emulated_support import PROFILE, ByteCodec, write_tables
from server_support import LiveServer, Streamed, client_of, events, stream

ANSWER = ByteCodec().encode("0123456789" * 8)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture(scope="module")
def live(tables: dict[int, Path]) -> Iterator[LiveServer]:
    with LiveServer(tables, running_max=4, server={"waiting_max": 2}) as live:
        yield live


async def until(condition: Any, seconds: float = 5.0) -> None:
    """Wait until condition() holds; fails if it does not within `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


async def cut_off(client: httpx.AsyncClient, body: dict[str, Any]) -> int:
    """A client that reads three events and goes away."""
    seen = 0
    async with client.stream("POST", "/v1/completions", json={"stream": True, **body}) as response:
        async for _ in events(response):
            seen += 1
            if seen == 3:
                return seen
    return seen


async def send_garbage(url: str) -> bytes:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(np.random.default_rng(0).integers(0, 256, 4096, np.uint8).tobytes() + b"\r\n\r\n")
    answer = await reader.read(200)
    writer.close()
    return answer


def long_answer(tokens: int = 400) -> dict[str, Any]:
    return {"prompt": "go on", "max_tokens": tokens, "ignore_eos": True}


def test_clients_stay_right_beside_one_cut_off_one_garbage_and_one_prompt_of_100_000_tokens(
    tables: dict[int, Path],
) -> None:
    """Four clients on a running server; the prompt of 100,000 tokens is computed in chunks of 8192."""
    profile = PROFILE.model_copy(update={"prefill": PROFILE.prefill.model_copy(update={"chunk_tokens": 8192})})
    bodies = [{"prompt": f"client {n} asks for something", "max_tokens": 40} for n in range(2)]
    huge = {"prompt": np.random.default_rng(5).integers(3, 250, 100_000).tolist(), "max_tokens": 3}

    async def alone() -> list[Streamed]:
        async with client_of(live) as client:
            return [await stream(client, body) for body in bodies]

    async def together() -> tuple[list[Streamed], Streamed]:
        async with client_of(live) as client:
            good = [asyncio.create_task(stream(client, body)) for body in bodies]
            bad = [asyncio.create_task(cut_off(client, long_answer())), asyncio.create_task(send_garbage(live.url))]
            big = asyncio.create_task(stream(client, huge))
            assert (await asyncio.gather(*bad))[1].startswith(b"HTTP/1.1 400")
            return await asyncio.gather(*good), await big

    with LiveServer(tables, profile=profile, tp=4) as live:
        expected = asyncio.run(alone())
        found, big = asyncio.run(together())
        report = httpx.get(f"{live.url}/slacktier/report").json()
    assert [one.text for one in found] == [one.text for one in expected]
    assert all(one.is_done and one.usage["completion_tokens"] == 40 for one in found)
    assert (big.usage["prompt_tokens"], big.usage["completion_tokens"]) == (100_000, 3)
    assert (report["mismatched_rows"], report["failed_steps"]) == (0, 0)
    assert report["rows_checked"] > 100_000 * 48 / 5


def test_prompt_beyond_the_context_is_refused_clearly(live: LiveServer) -> None:
    answer = httpx.post(f"{live.url}/v1/completions", json={"prompt": [5] * 140_000, "max_tokens": 1}, timeout=20)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "131072 tokens long; the prompt has 140000" in answer.json()["error"]["message"]


def test_client_that_goes_away_frees_its_slot_at_once(live: LiveServer) -> None:
    async def main() -> None:
        async with client_of(live) as client:
            before = live.engine.step_count
            assert await cut_off(client, long_answer(50_000)) == 3
            await until(lambda: live.engine.scheduler.running_count == 0)
            assert live.engine.step_count - before < 40

    asyncio.run(main())


def test_full_queue_refuses_with_503_and_retry_after_and_recovers(live: LiveServer) -> None:
    async def main() -> None:
        async with client_of(live) as client:
            running = [asyncio.create_task(stream(client, long_answer(60))) for _ in range(6)]
            await until(lambda: live.server.client is not None and live.server.client.in_flight == 6)
            refused = await client.post("/v1/completions", json={"prompt": "x"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "queue_full"
            found = await asyncio.gather(*running)
            assert all(one.usage["completion_tokens"] == 60 for one in found)
            assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200

    asyncio.run(main())


def test_first_token_comes_in_the_order_of_arrival_when_slots_are_taken(tables: dict[int, Path]) -> None:
    order: list[int] = []

    async def one(client: httpx.AsyncClient, number: int) -> None:
        body = {"prompt": f"number {number}", "max_tokens": 5, "ignore_eos": True, "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in events(response):
                if number not in order:
                    order.append(number)

    async def main(live: LiveServer) -> None:
        async with client_of(live) as client:
            tasks = []
            for number in range(4):
                tasks.append(asyncio.create_task(one(client, number)))
                await until(lambda at=number: at in order or in_flight(live) > 0)
                await asyncio.sleep(0.005)
            await asyncio.gather(*tasks)

    def in_flight(live: LiveServer) -> int:
        return live.server.client.in_flight if live.server.client is not None else 0

    with LiveServer(tables, running_max=1) as live:
        asyncio.run(main(live))
    assert order == [0, 1, 2, 3]


def test_sources_and_cache_switch_under_load_without_a_wrong_row(live: LiveServer) -> None:
    httpx.get(f"{live.url}/slacktier/report?reset=true")
    tiers: list[dict[str, Any]] = [
        {"tier": "dram"}, {"tier": "nvme"}, {"tier": "emulated", "delay": {"a_us": 50.0}, "device": "switch-test"},
    ]  # fmt: skip

    async def main() -> None:
        async with client_of(live) as client:
            load = [asyncio.create_task(stream(client, long_answer(100))) for _ in range(4)]
            for turn in range(9):
                layers = [
                    {"layer_id": layer_id, "cache_rows": (0, 50, 3000)[(turn + at) % 3], **tiers[(turn + at) % 3]}
                    for at, layer_id in enumerate((1, 14))
                ]
                answer = await client.post("/slacktier/control", json={"layers": layers})
                assert answer.status_code == 200, answer.text
                assert [layer["tier"] for layer in answer.json()["layers"]] == [layer["tier"] for layer in layers]
            assert all(one.usage["completion_tokens"] == 100 for one in await asyncio.gather(*load))

    asyncio.run(main())
    report = httpx.get(f"{live.url}/slacktier/report").json()
    assert (report["mismatched_rows"], report["failed_steps"]) == (0, 0)
    assert report["rows_checked"] >= 4 * 100 * 48
    assert report["layers"][0]["hits"] > 0


def test_recorded_answers_of_many_streams_do_not_mix(live: LiveServer) -> None:
    async def main() -> list[Streamed]:
        async with client_of(live) as client:
            bodies = [
                {"prompt": "x", "max_tokens": 60, "slacktier": {"output_token_ids": ANSWER[n : n + 60]}}
                for n in range(6)
            ]
            return await asyncio.gather(*(stream(client, body) for body in bodies))

    texts = [one.text for one in asyncio.run(main())]
    assert texts == [("0123456789" * 8)[n : n + 60] for n in range(6)]


def test_connection_that_sends_nothing_holds_nobody_up(live: LiveServer) -> None:
    host, port = urlsplit(live.url).hostname, urlsplit(live.url).port
    with socket.create_connection((host, port), timeout=5):
        assert httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"}, timeout=5).status_code == 200
