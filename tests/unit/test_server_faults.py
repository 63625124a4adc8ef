# SPDX-License-Identifier: Apache-2.0
"""Lookups that fail, bytes that are wrong, control calls without permission: clear errors, and a way back."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from emulated_support import ByteCodec, write_tables
from server_support import LiveServer, Streamed, client_of, stream

from slacktier.errors import TierUnavailableError
from slacktier_emulated import engine_client

GONE = TierUnavailableError("disk gone", tier="nvme", operation="read", target="/a", errno=5)
LONG = {"prompt": "go on", "max_tokens": 5000, "ignore_eos": True}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture
def live(tables: dict[int, Path]) -> Iterator[LiveServer]:
    with LiveServer(tables) as live:
        yield live


def get(live: LiveServer, path: str) -> httpx.Response:
    return httpx.get(live.url + path, timeout=10)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stream_while(live: LiveServer, meanwhile: Callable[[], None]) -> Streamed:
    """A long stream, and something that happens after its first tokens."""

    async def main() -> Streamed:
        async with client_of(live) as client:
            streaming = asyncio.create_task(stream(client, LONG))
            while live.engine.aggregates.as_json(live.engine.tiers, end_step=0, now_ns=0)["steps"] < 3:
                await asyncio.sleep(0.002)
            meanwhile()
            return await streaming

    return asyncio.run(main())


def test_lost_disk_ends_streams_with_an_error_event_and_readiness_follows(live: LiveServer) -> None:
    assert get(live, "/readyz").json()["ready"] is True
    found = stream_while(live, lambda: setattr(live.core, "fault", GONE))
    assert not found.is_done
    assert found.error["type"] == "server_error"
    assert "layer 1: disk gone" in found.error["message"]
    ready = get(live, "/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert "disk gone" in ready.json()["error"]
    assert get(live, "/health").status_code == 200
    metrics = get(live, "/metrics").text
    assert 'slacktier_lookup_failures_total{engine="emulated",layer="1",reason="TierUnavailableErrno5"}' in metrics
    assert 'slacktier_ready{engine="emulated"} 0.0' in metrics
    answer = httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_error")
    live.core.fault = None
    wait_for(lambda: get(live, "/readyz").status_code == 200)
    assert httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"}).status_code == 200


def test_wrong_byte_is_an_error_and_never_a_token(live: LiveServer) -> None:
    ids = ByteCodec().encode("right" * 400)
    body = {"prompt": "x", "max_tokens": len(ids), "slacktier": {"output_token_ids": ids}}

    async def main() -> Streamed:
        async with client_of(live) as client:
            streaming = asyncio.create_task(stream(client, body))
            await asyncio.sleep(0.1)
            live.core.flips = True
            return await streaming

    found = asyncio.run(main())
    assert "differ from the test pattern" in found.error["message"]
    assert ("right" * 400).startswith(found.text)
    assert get(live, "/slacktier/report").json()["mismatched_rows"] > 0


def test_failed_request_that_did_not_stream_gets_500(live: LiveServer) -> None:
    live.core.fault = GONE
    answer = httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"}, timeout=10)
    assert answer.status_code == 500
    assert "disk gone" in answer.json()["error"]["message"]


def test_control_needs_the_token_where_there_is_one(tables: dict[int, Path]) -> None:
    change = {"layers": [{"layer_id": 1, "cache_rows": 10}]}
    with LiveServer(tables, server={"token": "s3cret"}) as live:
        control = f"{live.url}/slacktier/control"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}):
            assert httpx.post(control, json=change, headers=headers).status_code == 401
        assert get(live, "/slacktier/report?reset=true").status_code == 401
        right = {"Authorization": "Bearer s3cret"}
        answer = httpx.post(control, json=change, headers=right)
        assert answer.json()["layers"][0]["cache_rows"] == 10
        assert httpx.get(f"{live.url}/slacktier/report?reset=true", headers=right).status_code == 200
        assert get(live, "/slacktier/report").status_code == 200


def test_control_is_off_where_others_can_reach_the_server_without_a_token(tables: dict[int, Path]) -> None:
    with LiveServer(tables, server={"host": "0.0.0.0"}) as live:  # noqa: S104 - the setting; the socket is loopback
        answer = httpx.post(f"{live.url}/slacktier/control", json={"profile": {}})
        assert (answer.status_code, "--token-file" in answer.json()["error"]["message"]) == (403, True)
        assert get(live, "/slacktier/report?reset=true").status_code == 403
        assert get(live, "/slacktier/status").status_code == 200


def test_web_page_of_another_site_cannot_change_the_server(live: LiveServer) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example:8000"}):
        answer = httpx.post(f"{live.url}/slacktier/control", content=b'{"profile": {}}', headers=headers)
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "nothing to change"),
        ({"layers": [{"layer_id": 5, "cache_rows": 1}]}, "layer 5"),
        ({"layers": [{"layer_id": 1, "tier": "nvme", "paths": ["/nowhere"]}]}, "/nowhere"),
        ({"layers": [{"layer_id": 1, "tier": "rdma"}]}, "rdma"),
        ({"layers": [{"layer_id": 1, "cache_rows": 1 << 31}]}, "layer 1: cache of 2147483648 rows"),
        ({"layers": [{"layer_id": 1, "tier": "nvme", "paths": ["a\0b"]}]}, "NUL"),
        ({"layers": [{"layer_id": 1, "tier": "nvme", "paths": [__file__]}]}, "no region"),
    ],
)
def test_wrong_control_request_says_what_is_wrong(live: LiveServer, body: dict[str, Any], complaint: str) -> None:
    answer = httpx.post(f"{live.url}/slacktier/control", json=body)
    assert answer.status_code == 400
    assert complaint in answer.json()["error"]["message"]


def test_fault_of_our_own_in_a_control_call_is_an_error_reply_and_changes_nothing(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    real = live.core.set_cache_rows

    def set_cache_rows(layer_index: int, rows: int) -> None:
        if layer_index == 1:
            raise ValueError("not foreseen")
        real(layer_index, rows)

    monkeypatch.setattr(live.core, "set_cache_rows", set_cache_rows)
    change = {"layers": [{"layer_id": 1, "cache_rows": 10}, {"layer_id": 14, "cache_rows": 10}]}
    answer = httpx.post(f"{live.url}/slacktier/control", json=change)
    assert answer.status_code == 500
    message = "engine call control failed: ValueError: not foreseen"
    assert (answer.json()["error"]["message"], capfd.readouterr().err) == (message, f"slacktier: {message}\n")
    status = get(live, "/slacktier/status").json()
    assert ([layer["cache_rows"] for layer in status["layers"]], status["call_faults"]) == ([0, 0], 1)
    assert httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"}).status_code == 200


def test_engine_that_hangs_is_not_ready_until_it_goes_on(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "SILENT_S_MAX", 0.05)
    goes_on, real = threading.Event(), live.engine.report

    def hang(*, reset: bool) -> dict[str, Any]:
        assert goes_on.wait(10)
        return real(reset=reset)

    monkeypatch.setattr(live.engine, "report", hang)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(get, live, "/slacktier/report")
        wait_for(lambda: get(live, "/readyz").status_code == 503)
        assert "not been heard of" in get(live, "/readyz").json()["error"]
        goes_on.set()
        assert asked.result().status_code == 200
    wait_for(lambda: get(live, "/readyz").status_code == 200)


def test_profile_can_be_another_one_for_a_while(live: LiveServer) -> None:
    control = f"{live.url}/slacktier/control"
    status = httpx.post(control, json={"profile": {"step_ms": 9.0, "windows_ms": {"1": 0.2}}}).json()
    assert status["profile_overrides"]["step_ms"] == 9.0
    get(live, "/slacktier/report?reset=true")
    httpx.post(f"{live.url}/v1/completions", json={"prompt": "x", "max_tokens": 8, "ignore_eos": True})
    report = get(live, "/slacktier/report").json()
    assert report["step_ms"]["p50"] > 8.9
    assert report["layers"][0]["window_ms"] == pytest.approx(0.2)
    assert httpx.post(control, json={"profile": {}}).json()["profile_overrides"]["step_ms"] is None


def test_client_that_goes_away_inside_its_body_leaves_no_trace(
    live: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as raw:
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(0.05)
    assert httpx.post(f"{live.url}/v1/completions", json={"prompt": "x"}).status_code == 200
    assert caplog.records == []


def test_report_with_a_wrong_parameter_is_refused_in_the_same_shape(live: LiveServer) -> None:
    answer = get(live, "/slacktier/report?reset=maybe")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reset")
