# SPDX-License-Identifier: Apache-2.0
"""An OpenAI-compatible streaming server that misbehaves as told, and knows to the nanosecond what it sent when.

`python tests/misbehaving_server.py '{"tokens_per_chunk": 4}'` prints its URL and serves until it is ended; `GET /sent`
gives what it sent so far. Instants are of the machine's monotonic clock, which all its processes share, so that a
client's figures can be held against them: whatever delays the server on a busy machine is part of the truth.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

# Each token is a piece of text that is easily cut wrongly: several bytes per character, and a character at which
# Python's splitlines() would split.
TOKENS = ("\u00e9t\u00e9 ", "\u6f22\u5b57 ", "\u2028", "x\U0001f600 ", "plain ")


@dataclass(frozen=True)
class Behaviour:
    """What the server does; the defaults are one token per chunk, each in a write of its own.

    tokens_per_chunk  0: the whole answer in one chunk
    role_first_s      a chat stream opens with a role-only delta, so long before the first token; 0: with it
    comment_s         a `:` comment this long before each token chunk; 0: none
    slow_headers_s    the response head comes so long after the request
    splits            every event in two writes, cut inside a character, 1 ms apart
    coalesces         chunks are written two at a time
    reset_every       every n-th request is reset after `reset_after` chunks; 0: none
    refuse_every      every n-th request gets `status`
    wrong_every       every n-th answer is another text
    dies_after        the process ends in the middle of this request; 0: never
    done_s            [DONE] comes so long after the usage chunk
    """

    first_s: float = 0.03
    gap_s: float = 0.01
    tokens_per_chunk: int = 1
    role_first_s: float = 0.0
    comment_s: float = 0.0
    has_usage: bool = True
    slow_headers_s: float = 0.0
    splits: bool = False
    coalesces: bool = False
    reset_every: int = 0
    reset_after: int = 3
    refuse_every: int = 0
    status: int = 429
    wrong_every: int = 0
    dies_after: int = 0
    done_s: float = 0.0


@dataclass
class Sent:
    """One request as the server saw it: when it had come, when each token chunk was written whole, how it ended."""

    number: int
    received_ns: int
    tokens: int
    chunk_ns: list[int] = field(default_factory=list)
    last_ns: int = 0
    end: str = "open"

    @property
    def ttft_ms(self) -> float:
        return (self.chunk_ns[0] - self.received_ns) / 1e6

    @property
    def e2e_ms(self) -> float:
        return (self.chunk_ns[-1] - self.received_ns) / 1e6

    @property
    def tpot_ms(self) -> float:
        return (self.chunk_ns[-1] - self.chunk_ns[0]) / 1e6 / (self.tokens - 1)

    @property
    def gaps_ms(self) -> list[float]:
        return [(b - a) / 1e6 for a, b in zip(self.chunk_ns, self.chunk_ns[1:], strict=False)]


class MisbehavingServer:
    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.sent: list[Sent] = []

    async def serve(self) -> None:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length:")),
                0,
            )
            body = json.loads(await reader.readexactly(length) or b"{}")
            await self._answer(head.split(" ")[1], body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, as some tests make it
        finally:
            writer.close()

    async def _answer(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if path == "/sent":
            _reply(writer, 200, [asdict(each) for each in self.sent])
        elif path == "/v1/models":
            _reply(writer, 200, {"object": "list", "data": [{"id": "misbehaving"}]})
        elif path in ("/v1/completions", "/v1/chat/completions"):
            sent = Sent(len(self.sent) + 1, time.perf_counter_ns(), _max_tokens(body))
            self.sent.append(sent)
            await self._stream(sent, path.endswith("chat/completions"), body, writer)
        else:
            _reply(writer, 404, {"error": {"message": path}})

    async def _stream(self, sent: Sent, is_chat: bool, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        b = self.behaviour
        if b.refuse_every and sent.number % b.refuse_every == 0:
            sent.end = "refused"
            _reply(writer, b.status, {"error": {"message": "come back later"}}, "Retry-After: 1\r\n")
            return
        start_s = time.perf_counter() + b.slow_headers_s
        await _until(start_s)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        due_s = start_s + b.first_s
        if is_chat and b.role_first_s:
            await _until(due_s - b.role_first_s)
            writer.write(_event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        for index, (text, is_last) in enumerate(self._chunks(sent)):
            if b.reset_every and sent.number % b.reset_every == 0 and index == b.reset_after:
                sent.end = "reset"
                _reset(writer)
                return
            if b.dies_after == sent.number and index == 2:
                os._exit(9)
            if b.comment_s:
                await _until(due_s - b.comment_s)
                writer.write(b": keep-alive\n\n")
            if not (b.coalesces and index % 2 and not is_last):
                await _until(due_s)
            await self._write(_event(_chunk(is_chat, text, is_last)), writer, sent)
            due_s += b.gap_s * (2 if b.coalesces and index % 2 == 0 else 0 if b.coalesces else 1)
        await self._finish(sent, body, writer)

    def _chunks(self, sent: Sent) -> Iterator[tuple[str, bool]]:
        wrong = self.behaviour.wrong_every and sent.number % self.behaviour.wrong_every == 0
        texts = ["wrong " if wrong else TOKENS[index % len(TOKENS)] for index in range(sent.tokens)]
        size = self.behaviour.tokens_per_chunk or len(texts)
        for first in range(0, len(texts), size):
            yield "".join(texts[first : first + size]), first + size >= len(texts)

    async def _write(self, event: bytes, writer: asyncio.StreamWriter, sent: Sent) -> None:
        if self.behaviour.splits:
            cut = next((at for at, byte in enumerate(event) if byte >= 0xC0), len(event) // 2) + 1
            writer.write(event[:cut])
            await asyncio.sleep(0.001)
            event = event[cut:]
        writer.write(event)  # the socket takes it here, so after this it is on its way
        sent.chunk_ns.append(time.perf_counter_ns())

    async def _finish(self, sent: Sent, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if self.behaviour.has_usage and (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": 5, "completion_tokens": sent.tokens, "total_tokens": 5 + sent.tokens}
            writer.write(_event({"choices": [], "usage": usage}))
        if self.behaviour.done_s:
            await asyncio.sleep(self.behaviour.done_s)
        writer.write(b"data: [DONE]\n\n")
        sent.last_ns = time.perf_counter_ns()
        sent.end = "done"
        await writer.drain()


async def _until(due_s: float) -> None:
    left = due_s - time.perf_counter()
    if left > 0:
        await asyncio.sleep(left)


def _max_tokens(body: dict[str, Any]) -> int:
    return int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)


def _chunk(is_chat: bool, text: str, is_last: bool) -> dict[str, Any]:
    finish = "length" if is_last else None
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    return {"object": "chunk", "choices": [choice | ({"delta": {"content": text}} if is_chat else {"text": text})]}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _reply(writer: asyncio.StreamWriter, status: int, content: Any, headers: str = "") -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def before_others() -> list[str]:
    """A command that starts the one in its last arguments ahead of all other work of the machine, where allowed."""
    first = ["chrt", "--fifo", "1"]
    allowed = (
        shutil.which("chrt") and subprocess.run([*first, "true"], check=False, capture_output=True).returncode == 0
    )
    return first if allowed else []


@contextmanager
def misbehaving(behaviour: Behaviour) -> Iterator[str]:
    """The server as a process of its own; gives its URL."""
    command = [*before_others(), sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(behaviour))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def sent_by(url: str) -> list[Sent]:
    """What the server at this URL has sent so far."""
    with urlopen(f"{url}/sent") as answer:  # noqa: S310 - our own server
        return [Sent(**each) for each in json.load(answer)]


if __name__ == "__main__":
    asyncio.run(MisbehavingServer(Behaviour(**json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}"))).serve())
