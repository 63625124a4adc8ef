# SPDX-License-Identifier: Apache-2.0
"""What the web server knows about an engine that says nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest

from slacktier_emulated import engine_client
from slacktier_emulated.app import not_ready_reason
from slacktier_emulated.channel import FrameKind, json_frame
from slacktier_emulated.engine_client import EngineClient, EngineGoneError

READY = json_frame(FrameKind.READY, {"pid": 1})


async def ready_client(ours: socket.socket, theirs: socket.socket) -> EngineClient:
    client = await EngineClient.connect(ours, lambda message: None)
    theirs.sendall(READY)
    await client.started
    return client


def test_engine_that_owes_an_answer_is_silent_until_it_is_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "SILENT_S_MAX", 0.02)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            client = await ready_client(ours, theirs)
            await asyncio.sleep(0.05)
            assert not client.is_silent  # nothing was asked
            client.ping()
            assert not client.is_silent
            await asyncio.sleep(0.05)
            assert client.is_silent
            assert "has not been heard of" in not_ready_reason(client)
            theirs.sendall(json_frame(FrameKind.REPLY, {"id": 0, "result": {}}))
            while client.is_silent:
                await asyncio.sleep(0.001)
            client.submit([1], [], max_tokens=1, ignore_eos=True, seed=0)
            await asyncio.sleep(0.05)
            assert client.is_silent

    asyncio.run(main())


def test_calls_that_wait_end_with_the_server() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            client = await ready_client(ours, theirs)
            call = asyncio.ensure_future(client.call("status"))
            await asyncio.sleep(0)
            client.stop()
            client.fail_all(client.error)
            with pytest.raises(EngineGoneError, match="the server is shutting down"):
                await call

    asyncio.run(main())
