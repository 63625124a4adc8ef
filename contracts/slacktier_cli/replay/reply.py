# SPDX-License-Identifier: Apache-2.0
"""A streaming completion's request and its answer, without I/O: what all clients share, whatever moves the bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from slacktier_cli.replay.framing import ResponseParser
from slacktier_cli.replay.metrics import Outcome, StreamRecord
from slacktier_cli.replay.sse import SseParser

_ERROR_BODY_BYTES: Final = 2000


def streaming_body(body: dict[str, Any]) -> bytes:
    """The request's JSON with streaming and usage reporting switched on."""
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(streamed, separators=(",", ":")).encode()


def request_head(
    host: str, method: str, path: str, body: bytes, accept: str, headers: Mapping[str, str] | None = None
) -> bytes:
    """A whole HTTP/1.1 request on a connection of its own; host as `name:port`."""
    further = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAccept: {accept}\r\n"
        f"Content-Type: application/json\r\n{further}Content-Length: {len(body)}\r\n\r\n"
    ).encode("latin-1") + body


class StreamedReply:
    """One answer, from body bytes and their arrival times.

    response  the parser that the bytes went through; its status decides what the body is
    """

    def __init__(self) -> None:
        self.response = ResponseParser()
        self.record = StreamRecord(sent_ns=0)
        self._events = SseParser()
        self._refused = bytearray()

    def on_body(self, received: bytes, now_ns: int) -> None:
        """Body bytes that arrived at now_ns; raises ContractError if they are no stream of completion chunks."""
        if self.response.status != 200:
            self._refused.extend(received[: _ERROR_BODY_BYTES - len(self._refused)])
            return
        for event in self._events.feed(received):
            self.record.add(event, now_ns)

    def finish(self, sent_ns: int, error: str = "") -> StreamRecord:
        """The record, once the response is over.

        error  why it was cut short, or "" if it ended by its own framing; it may still be no answer
        """
        record = self.record
        record.sent_ns = sent_ns
        record.status = self.response.status
        record.error = error or self._fault()
        record.outcome = Outcome.FAILED if record.error else Outcome.COMPLETED
        return record

    def _fault(self) -> str:
        if self.response.status != 200:
            return refusal(self.response.status, bytes(self._refused))
        if not self.record.is_done:
            return "the stream ended without [DONE]"
        if not self.record.chunk_ns:
            return "the stream held no token"
        return ""


def refusal(status: int, body: bytes) -> str:
    """What an answer that is not 200 said, for messages."""
    return f"HTTP {status}: {body.decode('utf-8', 'replace').strip()[:300]}"
