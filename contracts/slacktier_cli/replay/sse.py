# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: bytes as they arrive -> the `data` of each event.

Lines end in LF or CRLF and are split on LF only: payloads hold U+2028 and other characters that
`str.splitlines` would split at. A payload is given out when the empty line that ends its event has come.
Format: WHATWG HTML, section 9.2. Lone CR as a line end, `id` and `retry` are not supported: no OpenAI-compatible
server sends them.
"""

from __future__ import annotations

from typing import Final

from slacktier.errors import ContractError

EVENT_BYTES_MAX: Final = 16 << 20  # a server that never ends an event must not fill the memory


class SseParser:
    """Feed it reads of any size; it answers with the payloads that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []
        self._held_bytes = 0

    def feed(self, received: bytes) -> list[bytes]:
        """Payloads completed by these bytes, in order. Comments and events without data give none.

        raises  ContractError if one event grows past EVENT_BYTES_MAX
        """
        lines = (self._rest + received).split(b"\n")
        self._rest = lines.pop()
        payloads: list[bytes] = []
        for line in lines:
            if line.endswith(b"\r"):
                line = line[:-1]
            if not line:
                self._dispatch(payloads)
            elif line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                self._lines.append(value)
                self._held_bytes += len(value)
        if self._held_bytes + len(self._rest) > EVENT_BYTES_MAX:
            raise ContractError(f"event stream: one event of more than {EVENT_BYTES_MAX} bytes")
        return payloads

    def _dispatch(self, payloads: list[bytes]) -> None:
        if self._lines:
            payloads.append(b"\n".join(self._lines))
            self._lines = []
            self._held_bytes = 0
