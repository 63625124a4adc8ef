# SPDX-License-Identifier: Apache-2.0
"""The measuring client against a live loopback server that says known things at known times."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import (
    LAST_CHUNK,
    STREAM_HEAD,
    Script,
    ScriptedServer,
    chunked,
    done_event,
    event,
    text_event,
    usage_event,
)

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier_cli.replay.client import CompletionClient, Endpoint
from slacktier_cli.replay.framing import ResponseParser
from slacktier_cli.replay.metrics import Outcome, StreamRecord

BODY: dict[str, Any] = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 3}
ANSWER = STREAM_HEAD + text_event("a") + text_event("b") + text_event("c", "length") + usage_event(3) + done_event()


def complete(script: Script) -> tuple[StreamRecord, ScriptedServer]:
    async def run() -> tuple[StreamRecord, ScriptedServer]:
        async with ScriptedServer(script) as server:
            return await CompletionClient(server.endpoint).complete(BODY), server

    return asyncio.run(run())


def test_answer_is_measured_and_the_request_asks_for_usage() -> None:
    record, server = complete([(0, ANSWER + LAST_CHUNK)])
    assert (record.outcome, record.error, record.completion_tokens) == (Outcome.COMPLETED, "", 3)
    sent = json.loads(server.requests[0].split(b"\r\n\r\n", 1)[1])
    assert sent == {**BODY, "stream": True, "stream_options": {"include_usage": True}}


def test_times_follow_the_servers_pauses() -> None:
    """Role-only delta at once, first text after 60 ms, then a pause of 80 ms before the last of five tokens."""
    script = [
        (0.0, STREAM_HEAD + event(choices=[{"delta": {"role": "assistant", "content": ""}}])),
        (0.06, text_event("a")),
        (0.08, text_event("four tokens", "stop")),
        (0.05, usage_event(5) + done_event() + LAST_CHUNK),
    ]
    record, _ = complete(script)
    assert record.ttft_ms is not None
    assert record.tpot_ms is not None
    assert 59 <= record.ttft_ms < 120  # a busy machine may be late, never early
    assert 79 / 4 <= record.tpot_ms < 150 / 4


def test_clock_starts_when_the_request_is_sent() -> None:
    ticks = iter(range(0, 1000, 10))

    async def run() -> StreamRecord:
        async with ScriptedServer([(0, ANSWER + LAST_CHUNK)]) as server:
            return await CompletionClient(server.endpoint, clock=lambda: next(ticks)).complete(BODY)

    record = asyncio.run(run())
    assert record.sent_ns == 10  # the second reading, taken once connected


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_reads_split_anywhere_give_the_same_record(size: int) -> None:
    whole = ANSWER + LAST_CHUNK
    record, _ = complete([(0, whole[i : i + size]) for i in range(0, len(whole), size)])
    assert (record.outcome, record.completion_tokens, record.finish_reason) == (Outcome.COMPLETED, 3, "length")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([(0, b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nqueue full")], "HTTP 503: queue ful"),
        ([(0, STREAM_HEAD + text_event("a"))], "the connection ended in the middle of the response"),
        ([(0, STREAM_HEAD + text_event("a") + LAST_CHUNK)], "the stream ended without [DONE]"),
        ([(0, STREAM_HEAD + usage_event(0) + done_event() + LAST_CHUNK)], "the stream held no token"),
        ([(0, STREAM_HEAD + event(error={"message": "tier gone"}))], "the server ended the stream: tier gone"),
        ([(0, STREAM_HEAD + chunked(b"data: nonsense\n\n"))], "is not JSON"),
        ([(0, b"SSH-2.0-OpenSSH_9.2\r\n\r\n")], "status line"),
        ([(0, b"")], "the connection ended in the middle of the response"),
    ],
)
def test_broken_answers_are_failures_that_say_why(script: Script, error: str) -> None:
    record, _ = complete(script)
    assert record.outcome is Outcome.FAILED
    assert error in record.error


def test_server_that_is_not_there_is_a_failure() -> None:
    async def run() -> StreamRecord:
        async with ScriptedServer([]) as server:
            endpoint = server.endpoint
        return await CompletionClient(endpoint).complete(BODY)

    record = asyncio.run(run())
    assert record.outcome is Outcome.FAILED
    assert "Connect call failed" in record.error


def test_cancelled_request_drops_its_connection() -> None:
    async def run() -> int:
        script = [(0, STREAM_HEAD + text_event("a")), *[(0.005, text_event("b"))] * 200]
        async with ScriptedServer(script) as server:
            task = asyncio.create_task(CompletionClient(server.endpoint).complete(BODY))
            while not server.requests:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            for _ in range(200):
                if server.broken_count:
                    break
                await asyncio.sleep(0.005)
            return server.broken_count

    assert asyncio.run(run()) == 1


def test_plain_call_gives_the_json_answer() -> None:
    async def run() -> dict[str, Any]:
        async with ScriptedServer([(0, b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"ok": 1}')]) as server:
            return await CompletionClient(server.endpoint).call("POST", "/control", {"tier": "dram"})

    assert asyncio.run(run()) == {"ok": 1}


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad\r\nContent-Length: 8\r\n\r\nbad tier", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{"],
)
def test_plain_call_that_is_refused_raises(answer: bytes) -> None:
    async def run() -> None:
        async with ScriptedServer([(0, answer)]) as server:
            await CompletionClient(server.endpoint).call("POST", "/control", {"tier": "x"})

    with pytest.raises(SlackTierError, match=r"POST /control on 127\.0\.0\.1"):
        asyncio.run(run())


@pytest.mark.parametrize("url", ["https://a:1", "a:1", "http://", "http://a:x", "http://a:1/v1", "http://[::"])
def test_endpoint_refuses_what_it_cannot_reach(url: str) -> None:
    with pytest.raises(ConfigError):
        Endpoint.parse(url)


def test_endpoint_of_an_address() -> None:
    assert Endpoint.parse("http://127.0.0.1:8000/") == Endpoint("127.0.0.1", 8000)


@given(st.binary(max_size=200), st.booleans())
def test_bytes_from_outside_never_raise_anything_but_contract_errors(noise: bytes, is_body: bool) -> None:
    parser = ResponseParser()
    try:
        parser.feed((STREAM_HEAD if is_body else b"") + noise)
        parser.close()
    except ContractError:
        return
    assert parser.is_done


@given(st.lists(st.integers(0, 400), max_size=30))
def test_framing_does_not_depend_on_where_reads_end(cuts: list[int]) -> None:
    wire = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM_HEAD + chunked(b"x" * 100) + b"5;name=value\r\nhello\r\n"
        b"0\r\nTrailer: 1\r\n\r\n"
    )
    edges = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    parser = ResponseParser()
    body = b"".join(parser.feed(wire[a:b]) for a, b in itertools.pairwise(edges))
    assert body == b"x" * 100 + b"hello"
    assert parser.is_done
    assert parser.status == 200


def test_body_without_length_ends_with_the_connection() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nhello") == b"hello"
    parser.close()
    assert parser.is_done
