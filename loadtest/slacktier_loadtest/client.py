# SPDX-License-Identifier: Apache-2.0
"""One request over a blocking socket, measured. In a Locust process gevent makes the socket cooperative.

A time is taken as soon as bytes are there and before anything is parsed. Each request has a connection of its own;
TTFT starts when it is sent, with the connection already there.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.replay.metrics import StreamRecord
from slacktier_cli.replay.reply import StreamedReply, refusal, request_head

_READ_BYTES: Final = 1 << 16
_PORTS: Final = {"http": 80, "https": 443}
_CALL_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """A server's address: `http[s]://host[:port][/prefix]`, and headers for every request to it."""

    host: str
    port: int
    prefix: str = ""
    is_tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str, headers: Mapping[str, str] | None = None) -> Self:
        """Raises ConfigError for what is no such address; a trailing /v1 is taken off, requests name it."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as exc:
            raise ConfigError(f"server address {url!r}: {exc}") from exc
        if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or parts.username:
            raise ConfigError(f"server address {url!r}: expected http://host:port or https://host")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, port or _PORTS[parts.scheme], prefix, parts.scheme == "https", dict(headers or {}))

    def connect(self, timeout_s: float) -> socket.socket:
        """A connected socket whose every operation is bounded by timeout_s; raises OSError."""
        plain = socket.create_connection((self.host, self.port), timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.is_tls:
            return plain
        try:
            return ssl.create_default_context().wrap_socket(plain, server_hostname=self.host)
        except BaseException:
            plain.close()
            raise

    def request(self, method: str, path: str, body: bytes, accept: str) -> bytes:
        return request_head(f"{self.host}:{self.port}", method, f"{self.prefix}{path}", body, accept, self.headers)

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One plain call; its JSON, or {} for an answer that is none. Raises SlackTierError unless it answers 2xx."""
        content = b"" if body is None else json.dumps(body).encode()
        reply, received = StreamedReply(), bytearray()
        try:
            with self.connect(_CALL_TIMEOUT_S) as sock:
                sock.sendall(self.request(method, path, content, "application/json"))
                while not reply.response.is_done:
                    piece = sock.recv(_READ_BYTES)
                    received += reply.response.feed(piece)
                    if not piece:
                        reply.response.close()
        except (OSError, SlackTierError) as exc:
            raise SlackTierError(f"{method} {path} on {self.host}:{self.port}: {exc or type(exc).__name__}") from exc
        if not 200 <= reply.response.status < 300:
            text = refusal(reply.response.status, bytes(received))
            raise SlackTierError(f"{method} {path} on {self.host}:{self.port}: {text}")
        try:
            return json.loads(received)
        except ValueError:
            return {}


class StreamingClient:
    """Streams completions from one server, one at a time per calling greenlet or thread."""

    def __init__(self, target: Target, *, timeout_s: float, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._clock = clock

    def complete(self, path: str, payload: bytes) -> StreamRecord:
        """Send one streaming request (script.RequestShape makes its JSON) and wait for its end.

        returns  the record; outcome FAILED with `error` set if the server refused, broke off or sent nonsense
        """
        request = self._target.request("POST", path, payload, "text/event-stream")
        sent_ns = self._clock()
        reply = StreamedReply()
        error = ""
        try:
            with self._target.connect(self._timeout_s) as sock:
                sent_ns = self._clock()
                sock.sendall(request)
                self._read(sock, reply)
        except TimeoutError:
            error = f"the server sent nothing for {self._timeout_s:g} s"
        except (OSError, SlackTierError) as exc:
            error = str(exc) or type(exc).__name__
        return reply.finish(sent_ns, error)

    def _read(self, sock: socket.socket, reply: StreamedReply) -> None:
        response, clock = reply.response, self._clock
        while not response.is_done:
            received = sock.recv(_READ_BYTES)
            now_ns = clock()
            if not received:
                response.close()
                return
            body = response.feed(received)
            if body:
                reply.on_body(body, now_ns)
