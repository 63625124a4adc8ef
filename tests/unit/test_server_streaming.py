# SPDX-License-Identifier: Apache-2.0
"""What clients of the emulated engine's server see: streams, whole answers, usage, stop strings, errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from emulated_support import EOS, VOCABULARY, ByteCodec, write_tables
from server_support import MODEL, LiveServer, Streamed, client_of, stream

IDS = ByteCodec().encode


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(write_tables(tmp_path_factory.mktemp("tables")), server={"context_length": 2000}) as live:
        yield live


def replay(text: str, **changes: Any) -> dict[str, Any]:
    """A request whose recorded answer is this text."""
    ids = IDS(text)
    return {"prompt": "say it", "max_tokens": len(ids), "slacktier": {"output_token_ids": ids}, **changes}


def ask(live: LiveServer, body: dict[str, Any], path: str = "/v1/completions") -> Streamed:
    async def main() -> Streamed:
        async with client_of(live) as client:
            return await stream(client, body, path)

    return asyncio.run(main())


def post(live: LiveServer, body: Any, path: str = "/v1/completions") -> httpx.Response:
    content = body if isinstance(body, bytes) else None
    return httpx.post(live.url + path, json=None if content else body, content=content, timeout=20)


def test_recorded_answer_streams_one_event_per_token_with_usage_at_the_end(live: LiveServer) -> None:
    found = ask(live, replay('a "quoted" € line\n'))
    assert found.text == 'a "quoted" € line\n'
    assert found.is_done
    assert found.finish_reasons == [None] * (len(IDS('a "quoted" € line\n')) - 1) + ["length"]
    assert found.usage == {
        "prompt_tokens": 6, "completion_tokens": 20, "total_tokens": 26, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert {event["model"] for event in found.events} == {MODEL}
    assert {event["object"] for event in found.events} == {"text_completion"}
    assert len({event["id"] for event in found.events}) == 1


def test_whole_answer_equals_the_streamed_one(live: LiveServer) -> None:
    body = {"prompt": "tell me about tables and caches, at length", "max_tokens": 40, "seed": 3}
    streamed, whole = ask(live, body), post(live, body).json()
    assert whole["choices"][0]["text"] == streamed.text != ""
    assert whole["usage"]["completion_tokens"] == streamed.usage["completion_tokens"] == 40
    assert (whole["object"], whole["choices"][0]["finish_reason"]) == ("text_completion", "length")


def test_chat_opens_with_the_role_and_streams_deltas(live: LiveServer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "slacktier": {"output_token_ids": IDS("yes")}}
    found = ask(live, body, "/v1/chat/completions")
    first = found.events[0]["choices"][0]
    assert (first["delta"], first["finish_reason"]) == ({"role": "assistant", "content": ""}, None)
    assert (found.text, found.finish_reasons) == ("yes", [None, None, None, "stop"])
    assert {event["object"] for event in found.events} == {"chat.completion.chunk"}
    whole = post(live, body, "/v1/chat/completions").json()
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "yes"}


def test_answer_ends_at_eos_which_is_counted_but_not_shown(live: LiveServer) -> None:
    ids = [*IDS("ab"), EOS, *IDS("cd")]
    found = ask(live, replay("", max_tokens=5, slacktier={"output_token_ids": ids}))
    assert (found.text, found.usage["completion_tokens"], found.finish_reasons[-1]) == ("ab", 3, "stop")
    found = ask(live, replay("", max_tokens=5, ignore_eos=True, slacktier={"output_token_ids": ids}))
    assert (found.text, found.usage["completion_tokens"]) == (f"ab<{EOS}>cd", 5)


def test_answer_ends_before_a_stop_string_that_tokens_cut_apart(live: LiveServer) -> None:
    found = ask(live, replay("one STOP two", stop=["STOP", "never"]))
    assert (found.text, found.finish_reasons[-1], found.is_done) == ("one ", "stop", True)
    assert found.usage["completion_tokens"] == 8
    found = ask(live, replay("one STO", stop="STOP"))
    assert (found.text, found.finish_reasons[-1]) == ("one STO", "length")


def test_made_up_answer_is_the_same_for_the_same_prompt_and_seed_whoever_else_is_served(live: LiveServer) -> None:
    bodies = [{"prompt": f"prompt number {n}, " * 9, "max_tokens": 12, "seed": n} for n in range(6)]

    async def together() -> list[str]:
        async with client_of(live) as client:
            return [found.text for found in await asyncio.gather(*(stream(client, body) for body in bodies))]

    assert asyncio.run(together()) == [ask(live, body).text for body in bodies]


def test_second_turn_finds_its_history_in_the_prefix_cache(live: LiveServer) -> None:
    history = IDS("a long history that two turns share " * 4)
    first = ask(live, {"prompt": history, "max_tokens": 4})
    again = ask(live, {"prompt": history + IDS("more"), "max_tokens": 4})
    assert first.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert again.usage["prompt_tokens_details"]["cached_tokens"] == len(history) // 16 * 16


def test_prompt_is_a_string_ids_or_a_list_of_one(live: LiveServer) -> None:
    texts = {
        ask(live, {"prompt": prompt, "max_tokens": 8}).text
        for prompt in ("same thing", IDS("same thing"), ["same thing"], [IDS("same thing")])
    }
    assert len(texts) == 1


def test_everything_says_that_the_engine_is_emulated(live: LiveServer) -> None:
    (entry,) = httpx.get(f"{live.url}/v1/models").json()["data"]
    assert (entry["id"], entry["engine"]) == (MODEL, "emulated")
    assert httpx.get(f"{live.url}/slacktier/status").json()["engine"] == "emulated"
    assert httpx.get(f"{live.url}/slacktier/report").json()["engine"] == "emulated"
    assert 'engine="emulated"' in httpx.get(f"{live.url}/metrics").text
    assert post(live, {"prompt": "x", "max_tokens": 1}).json()["system_fingerprint"] == "slacktier-emulated"


def test_model_is_known_with_and_without_its_suffix_and_others_are_not_found(live: LiveServer) -> None:
    for model in (MODEL, "tiny", None):
        assert post(live, {"prompt": "x", "max_tokens": 1, "model": model}).status_code == 200
    answer = post(live, {"prompt": "x", "model": "gpt-4"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"\x00\xff\xfegarbage", 400),
        (b"", 400),
        ({"prompt": "x", "max_tokens": "many"}, 400),
        ({"prompt": [VOCABULARY]}, 400),
        ({"prompt": "x", "slacktier": {"output_token_ids": [VOCABULARY]}}, 400),
        ({"prompt": "x" * 2000}, 400),
        ({"prompt": "x", "max_tokens": 2000}, 400),
        ({}, 400),
    ],
)
def test_bad_request_gets_openais_error_shape(live: LiveServer, body: Any, status: int) -> None:
    answer = post(live, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (status, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}


def test_unknown_paths_and_methods_get_the_same_shape(live: LiveServer) -> None:
    assert httpx.get(f"{live.url}/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{live.url}/v1/completions").status_code == 405


def test_bytes_that_are_no_http_get_400(live: LiveServer) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")


def test_large_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with LiveServer(write_tables(tmp_path), server={"body_bytes_max": 2000}) as live:
        assert post(live, {"prompt": "x" * 3000}).status_code == 413

        def chunks() -> Iterator[bytes]:
            for _ in range(5):
                yield b"x" * 1000

        assert httpx.post(f"{live.url}/v1/completions", content=chunks()).status_code == 413


def test_slow_body_is_given_up(tmp_path: Path) -> None:
    with LiveServer(write_tables(tmp_path), server={"body_timeout_s": 0.05}) as live:
        host, port = live.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            assert raw.recv(100).startswith(b"HTTP/1.1 408")
