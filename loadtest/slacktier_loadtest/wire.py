# SPDX-License-Identifier: Apache-2.0
"""Messages between a run and its generator process: one JSON object per line, both ways, over a socket pair."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any, Final

_READ_BYTES: Final = 1 << 20


class LineSocket:
    """Either end; one thread or greenlet reads, one writes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = bytearray()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises OSError once the other end is gone."""
        self._sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Until the other end closes; raises OSError if it breaks."""
        while True:
            end = self._rest.find(b"\n")
            if end >= 0:
                line = bytes(self._rest[:end])
                del self._rest[: end + 1]
                yield json.loads(line)
                continue
            received = self._sock.recv(_READ_BYTES)
            if not received:
                return
            self._rest += received

    def close(self) -> None:
        self._sock.close()
