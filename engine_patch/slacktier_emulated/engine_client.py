# SPDX-License-Identifier: Apache-2.0
"""The server's end of the socket pair: requests out, tokens in, each to the stream that waits for it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from itertools import count
from typing import Any, Final, cast

import numpy as np

from slacktier.errors import ConfigError, SlackTierError
from slacktier_emulated import channel
from slacktier_emulated.channel import FrameKind, FrameReader, Submit
from slacktier_emulated.scheduler import Finish

CONTROL_TIMEOUT_S: Final = 600.0  # a switch to DRAM reads the whole region first
CALL_TIMEOUT_S: Final = 30.0
SILENT_S_MAX: Final = 5.0  # an engine that is silent for longer while it owes an answer is not ready


class EngineGoneError(SlackTierError):
    """The engine process ended; nothing can be answered any more."""


class EngineBusyError(SlackTierError):
    """The engine has not answered in time: a step or a control call takes longer than that."""


class TokenStream:
    """Tokens of one request as the engine yields them.

    cached_tokens  prompt tokens that needed no prefill; known before the first token
    error          why the request failed, or ""
    first_ns       when the first token came, last_ns the latest, on the monotonic clock
    """

    __slots__ = (
        "_loop",
        "_waiter",
        "cached_tokens",
        "error",
        "first_ns",
        "is_abandoned",
        "last_ns",
        "pending",
        "received",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self.pending: list[tuple[int, int]] = []
        self.received = 0
        self.cached_tokens = 0
        self.error = ""
        self.is_abandoned = False
        self.first_ns = self.last_ns = 0

    def push(self, token: int, finish: int, now_ns: int) -> None:
        if self.received == 0:
            self.first_ns = now_ns
        self.received += 1
        self.last_ns = now_ns
        self.pending.append((token, finish))
        self.wake()

    def fail(self, message: str) -> None:
        self.error = self.error or message
        self.wake()

    def abandon(self) -> None:
        """The client is gone: whoever waits for tokens stops."""
        self.is_abandoned = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[int, int]]:
        """(token, finish) pairs that have come, at least one, unless the stream failed or was abandoned."""
        while not (self.pending or self.error or self.is_abandoned):
            self._waiter = self._loop.create_future()
            await self._waiter
        taken, self.pending = self.pending, []
        return taken


class EngineClient(asyncio.Protocol):
    """Everything that the web server asks of the engine.

    on_gone  called once when an engine that had started ends without being told to
    is_ready, error  whether the last lookup worked, and what was wrong if not
    """

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.WriteTransport | None = None
        self._streams: dict[int, TokenStream] = {}
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ids = count(1)
        self._is_stopping = False
        self.is_gone = False
        self.started: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.is_ready = False
        self.error = "the engine is starting"
        self._awaited_s: float | None = None  # since when something has been asked and nothing heard

    @classmethod
    async def connect(cls, sock: socket.socket, on_gone: Callable[[str], None]) -> EngineClient:
        """Take over the server's end of the pair; `started` resolves when the engine has warmed up."""
        client = cls(on_gone)
        sock.setblocking(False)
        await client._loop.create_unix_connection(lambda: client, sock=sock)
        return client

    @property
    def in_flight(self) -> int:
        """Requests that the engine still holds."""
        return len(self._streams)

    def submit(
        self, prompt: list[int], answer: list[int], *, max_tokens: int, ignore_eos: bool, seed: int
    ) -> tuple[int, TokenStream]:
        """Hand a request to the engine; raises EngineGoneError."""
        request_id, stream = next(self._ids), TokenStream(self._loop)
        tokens = (np.array(prompt, np.uint32), np.array(answer, np.uint32))
        self._send(channel.encode_submit(Submit(request_id, *tokens, max_tokens, ignore_eos, seed)))
        self._streams[request_id] = stream
        return request_id, stream

    def cancel(self, request_id: int) -> None:
        """Tell the engine that nobody waits for this request any more; unknown ids have ended already."""
        if request_id in self._streams and self._transport is not None:
            self._transport.write(channel.encode_cancel(request_id))

    async def call(
        self, method: str, params: dict[str, Any] | None = None, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        """Ask the engine something; it answers between two steps. Raises what the engine raised, or EngineBusyError."""
        call_id = next(self._ids)
        self._calls[call_id] = self._loop.create_future()
        try:
            self._send(channel.json_frame(FrameKind.CALL, {"id": call_id, "method": method, "params": params or {}}))
            return await asyncio.wait_for(self._calls[call_id], timeout_s)
        except TimeoutError as exc:
            raise EngineBusyError(f"the engine has not answered within {timeout_s:g} s") from exc
        finally:
            del self._calls[call_id]

    def stop(self) -> None:
        """Tell the engine to end; what still runs fails."""
        self._is_stopping = True
        self.is_ready, self.error = False, "the server is shutting down"
        if self._transport is not None:
            self._transport.write(channel.frame(FrameKind.STOP))

    def ping(self) -> None:
        """Ask for a sign of life, unless an answer is awaited already; `silent_s` is what follows from it."""
        if self._awaited_s is None:
            self._send(channel.json_frame(FrameKind.CALL, {"id": 0, "method": "ping", "params": {}}))

    @property
    def silent_s(self) -> float:
        """For how long the engine has said nothing although something was asked of it; 0 if it owes no answer."""
        return 0.0 if self._awaited_s is None else self._loop.time() - self._awaited_s

    @property
    def is_silent(self) -> bool:
        return self.silent_s > SILENT_S_MAX

    def fail_all(self, message: str) -> None:
        for stream in self._streams.values():
            stream.fail(message)
        for call in self._calls.values():
            if not call.done():
                call.set_exception(EngineGoneError(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transports are not declared as such

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.is_gone, self.is_ready = True, False
        gone = EngineGoneError("the engine process has ended")
        if not self._is_stopping:
            self.error = str(gone)
        self.fail_all(self.error)
        self._streams.clear()
        if not self.started.done():
            self.started.set_exception(gone)
        elif not self._is_stopping and self.started.exception() is None:
            self._on_gone(str(gone))

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        for kind, payload in self._reader.feed(data):
            if kind is FrameKind.STEP:
                self._step(payload, now_ns)
            else:
                self._event(kind, json.loads(payload))
        is_owed = bool(self._streams) or any(not call.done() for call in self._calls.values())
        self._awaited_s = self._loop.time() if is_owed else None

    def _step(self, payload: bytes, now_ns: int) -> None:
        outputs = channel.decode_step(payload)
        streams = self._streams
        for request_id, cached in zip(outputs.started_ids, outputs.started_cached, strict=True):
            if request_id in streams:
                streams[request_id].cached_tokens = cached
        for request_id, token, finish in zip(outputs.request_ids, outputs.tokens, outputs.finishes, strict=True):
            stream = streams.get(request_id)
            if stream is None:
                continue
            if finish:
                del streams[request_id]
            if finish != Finish.CANCELLED:
                stream.push(token, finish, now_ns)

    def _event(self, kind: FrameKind, content: dict[str, Any]) -> None:
        if kind is FrameKind.FAILED:
            for request_id in content["request_ids"]:
                stream = self._streams.pop(request_id, None)
                if stream is not None:
                    stream.fail(content["message"])
        elif kind is FrameKind.REPLY:
            self._reply(content)
        elif kind is FrameKind.HEALTH:
            self.is_ready, self.error = content["ready"], content["error"]
        elif kind is FrameKind.READY and not self.started.done():
            self.is_ready, self.error = True, ""
            self.started.set_result(content)
        elif kind is FrameKind.FATAL and not self.started.done():
            self.error = content["message"]
            self.started.set_exception(remote_error(content))

    def _reply(self, content: dict[str, Any]) -> None:
        call = self._calls.get(content["id"])
        if call is None or call.done():
            return  # its caller has gone
        if "error" in content:
            call.set_exception(remote_error(content["error"]))
        else:
            call.set_result(content["result"])

    def _send(self, message: bytes) -> None:
        if self._transport is None:
            raise EngineGoneError("the engine process has ended")
        self._transport.write(message)
        if self._awaited_s is None:
            self._awaited_s = self._loop.time()


def remote_error(content: dict[str, Any]) -> SlackTierError:
    """The engine's error as this process raises it."""
    kind = ConfigError if content["kind"] == "config" else SlackTierError
    return kind(content["message"], hint=content["hint"])
