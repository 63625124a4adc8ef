# SPDX-License-Identifier: Apache-2.0
"""The engine's end of the socket pair: never blocks a step, unless the server has stopped reading for good."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Final

from slacktier_emulated.channel import FrameKind, FrameReader

_CHUNK_BYTES: Final = 1 << 18
# A server that is this far behind has stalled; waiting for it is better than growing without bound.
_UNSENT_BYTES_MAX: Final = 64 << 20


class Link:
    """Frames in and out of a non-blocking socket; `is_closed` once the server is gone."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._reader = FrameReader()
        self._unsent = bytearray()
        self.is_closed = False

    def send(self, message: bytes) -> None:
        """Send now what the socket takes, keep the rest for the next call."""
        self._unsent += message
        self._flush()
        while len(self._unsent) > _UNSENT_BYTES_MAX and not self.is_closed:
            select.select([], [self._socket], [])
            self._flush()

    def receive(self, wait_s: float | None = 0.0) -> Iterator[tuple[FrameKind, bytes]]:
        """Frames that have come; waits up to wait_s for the first, for ever if None."""
        self._flush()
        writable = [self._socket] if self._unsent else []
        readable, ready, _ = select.select([self._socket], writable, [], wait_s)
        if ready:
            self._flush()
        while readable and not self.is_closed:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except ConnectionError:
                chunk = b""
            if not chunk:
                self.is_closed = True
                return
            yield from self._reader.feed(chunk)

    def _flush(self) -> None:
        try:
            while self._unsent and not self.is_closed:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except ConnectionError:
            self.is_closed = True
