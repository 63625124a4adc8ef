# SPDX-License-Identifier: Apache-2.0
"""One request to an OpenAI-compatible server, measured: asyncio sockets, one connection per request.

Client and server share the machine's cores in a demo, so the cost per token counts: chunks are handled where the
event loop delivers them, without a task switch, and a time is taken before anything is parsed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.replay.framing import ResponseParser
from slacktier_cli.replay.metrics import StreamRecord
from slacktier_cli.replay.reply import StreamedReply, refusal, request_head, streaming_body

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the server listens; plain HTTP."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """From `http://host:port`; raises ConfigError for anything else."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError as exc:
            raise ConfigError(f"server address {url!r}: {exc}") from exc
        if parts.scheme != "http" or not host or parts.path not in ("", "/"):
            raise ConfigError(f"server address {url!r}: expected http://host:port")
        return cls(host, port)

    def head(self, method: str, path: str, body: bytes, accept: str) -> bytes:
        return request_head(f"{self.host}:{self.port}", method, path, body, accept)


class _Exchange(asyncio.Protocol):
    """Sends one request; hands body bytes to `on_body` as they come; `ended` resolves when the response is over."""

    def __init__(
        self, request: bytes, response: ResponseParser, on_body: Callable[[bytes, int], None], clock: Clock
    ) -> None:
        self._request = request
        self.response = response
        self._on_body = on_body
        self._clock = clock
        self._transport: asyncio.WriteTransport | None = None
        self.sent_ns = 0
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: event loops other than asyncio's have transports that derive from none of its classes.
        self._transport = cast(asyncio.WriteTransport, transport)
        self.sent_ns = self._clock()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now_ns = self._clock()
        if self.ended.done():
            return
        try:
            body = self.response.feed(data)
            if body:
                self._on_body(body, now_ns)
        except SlackTierError as exc:
            self._finish(exc)
            return
        if self.response.is_done:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended.done():
            return
        if exc is not None:
            self._finish(exc)
            return
        try:
            self.response.close()
        except SlackTierError as early:
            self._finish(early)
        else:
            self._finish(None)

    def _finish(self, exc: Exception | None) -> None:
        if exc is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(exc)
        self.abort()

    def abort(self) -> None:
        """Drop the connection at once; the server sees it go."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()


class CompletionClient:
    """Streams completions from one server; any number of requests at once, on one event loop."""

    def __init__(self, endpoint: Endpoint, *, clock: Clock = time.perf_counter_ns) -> None:
        self.endpoint = endpoint
        self._clock = clock

    async def complete(self, body: dict[str, Any], *, path: str = "/v1/completions") -> StreamRecord:
        """Send one streaming request and wait for its end.

        body     as the API wants it; `stream` and usage reporting are switched on here
        returns  the record; outcome FAILED with `error` set if the server refused, broke off or sent nonsense
        A cancelled call drops the connection and raises CancelledError, as any task.
        """
        request = self.endpoint.head("POST", path, streaming_body(body), "text/event-stream")
        started_ns = self._clock()
        reply = StreamedReply()
        exchange = _Exchange(request, reply.response, reply.on_body, self._clock)
        error = ""
        try:
            await self._run(exchange)
        except (OSError, SlackTierError) as exc:
            error = str(exc) or type(exc).__name__
        return reply.finish(exchange.sent_ns or started_ns, error)

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One plain JSON call; raises SlackTierError if the server cannot be reached or does not answer 200."""
        received = bytearray()
        payload = b"" if body is None else json.dumps(body).encode()
        request = self.endpoint.head(method, path, payload, "application/json")
        exchange = _Exchange(request, ResponseParser(), lambda piece, _: received.extend(piece), self._clock)
        try:
            await self._run(exchange)
            if exchange.response.status != 200:
                raise self._unavailable(method, path, refusal(exchange.response.status, bytes(received)))
            answer: dict[str, Any] = json.loads(received)
        except (OSError, ValueError) as exc:
            raise self._unavailable(method, path, str(exc) or type(exc).__name__) from exc
        return answer

    def _unavailable(self, method: str, path: str, why: str) -> SlackTierError:
        return SlackTierError(f"{method} {path} on {self.endpoint.host}:{self.endpoint.port}: {why}")

    async def _run(self, exchange: _Exchange) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: exchange, self.endpoint.host, self.endpoint.port)
            await exchange.ended
        finally:
            exchange.ended.cancel()
            exchange.abort()
