# SPDX-License-Identifier: Apache-2.0
"""A loopback server that answers each connection with given bytes at given moments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from slacktier_cli.replay.client import Endpoint

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"

Script = Sequence[tuple[float, bytes]]  # (seconds to wait, bytes to send)


def chunked(body: bytes) -> bytes:
    return f"{len(body):x}\r\n".encode() + body + b"\r\n"


def event(**chunk: Any) -> bytes:
    return chunked(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def text_event(text: str, finish_reason: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": text, "finish_reason": finish_reason}])


def usage_event(completion_tokens: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": completion_tokens})


def done_event() -> bytes:
    return chunked(b"data: [DONE]\n\n")


class ScriptedServer:
    """`async with ScriptedServer(script) as server`: each connection gets the whole script, then is closed."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[bytes] = []
        self.broken_count = 0

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.endpoint = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        try:
            for delay_s, piece in self.script:
                if delay_s:
                    await asyncio.sleep(delay_s)
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            self.broken_count += 1
        finally:
            writer.close()
