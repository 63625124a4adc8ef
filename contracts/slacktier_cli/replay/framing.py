# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 responses: bytes as they arrive -> status, headers and body bytes.

Only what an answer to one request on one connection needs: chunked bodies, bodies of a given length, and bodies that
end with the connection. Sizes are bounded, since the bytes come from outside. Source: RFC 9112.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from slacktier.errors import ContractError

HEAD_BYTES_MAX: Final = 64 << 10
_CHUNK_LINE_BYTES_MAX: Final = 256


class _Expect(Enum):
    HEAD = auto()
    CHUNK_SIZE = auto()
    CHUNK_BODY = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    LENGTH = auto()
    CLOSE = auto()
    NOTHING = auto()


class ResponseParser:
    """Feed it reads of any size; it answers with body bytes.

    status   0 until the head has come; headers with lower-case names, the last of equal names wins
    is_done  the body has ended by its own framing
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._rest = b""
        self._left = 0
        self._expect = _Expect.HEAD

    @property
    def is_done(self) -> bool:
        return self._expect is _Expect.NOTHING

    def close(self) -> None:
        """The connection ended; raises ContractError if the response had not."""
        if self._expect is _Expect.CLOSE:
            self._expect = _Expect.NOTHING
        if not self.is_done:
            raise ContractError("the connection ended in the middle of the response")

    def feed(self, received: bytes) -> bytes:
        """Body bytes in these reads; b"" if none yet. Raises ContractError on a response that breaks the format."""
        self._rest += received
        body: list[bytes] = []
        while self._advance(body):
            pass
        return body[0] if len(body) == 1 else b"".join(body)

    def _advance(self, body: list[bytes]) -> bool:
        """One element of the response, if it is whole; whether to go on."""
        expect = self._expect
        if expect is _Expect.CHUNK_SIZE:
            return self._take_chunk_size()
        if expect is _Expect.CHUNK_BODY or expect is _Expect.LENGTH:
            return self._take_body(body)
        if expect is _Expect.CHUNK_END:
            return self._take_chunk_end()
        if expect is _Expect.HEAD:
            return self._take_head()
        if expect is _Expect.TRAILER:
            return self._take_trailer()
        if expect is _Expect.CLOSE and self._rest:
            body.append(self._rest)
            self._rest = b""
        return False

    def _take_head(self) -> bool:
        end = self._rest.find(b"\r\n\r\n")
        if end < 0:
            if len(self._rest) > HEAD_BYTES_MAX:
                raise ContractError(f"response head of more than {HEAD_BYTES_MAX} bytes")
            return False
        lines = self._rest[:end].decode("latin-1").split("\r\n")
        self._rest = self._rest[end + 4 :]
        self.status = _status(lines[0])
        self.headers = dict(_header(line) for line in lines[1:])
        if 100 <= self.status < 200:  # an interim response: the real one follows
            return True
        self._expect = self._body_framing()
        return True

    def _body_framing(self) -> _Expect:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return _Expect.CHUNK_SIZE
        length = self.headers.get("content-length")
        if length is None:
            return _Expect.CLOSE
        if not length.isascii() or not length.isdigit():
            raise ContractError(f"response: content-length {length!r}")
        self._left = int(length)
        return _Expect.LENGTH if self._left else _Expect.NOTHING

    def _take_chunk_size(self) -> bool:
        end = self._rest.find(b"\r\n")
        if end < 0:
            if len(self._rest) > _CHUNK_LINE_BYTES_MAX:
                raise ContractError("response: chunk size line too long")
            return False
        digits = self._rest[:end].split(b";", 1)[0].strip()
        try:
            self._left = int(digits, 16)
        except ValueError as exc:
            raise ContractError(f"response: chunk size {digits!r}") from exc
        if self._left < 0:
            raise ContractError(f"response: chunk size {digits!r}")
        self._rest = self._rest[end + 2 :]
        self._expect = _Expect.CHUNK_BODY if self._left else _Expect.TRAILER
        return True

    def _take_body(self, body: list[bytes]) -> bool:
        piece = self._rest[: self._left]
        if not piece:
            return False
        body.append(piece)
        self._rest = self._rest[len(piece) :]
        self._left -= len(piece)
        if self._left == 0:
            self._expect = _Expect.CHUNK_END if self._expect is _Expect.CHUNK_BODY else _Expect.NOTHING
        return True

    def _take_chunk_end(self) -> bool:
        if len(self._rest) < 2:
            return False
        if not self._rest.startswith(b"\r\n"):
            raise ContractError("response: a chunk is longer than its size says")
        self._rest = self._rest[2:]
        self._expect = _Expect.CHUNK_SIZE
        return True

    def _take_trailer(self) -> bool:
        end = self._rest.find(b"\r\n")
        if end < 0:
            return False
        is_last = end == 0
        self._rest = self._rest[end + 2 :]
        if is_last:
            self._expect = _Expect.NOTHING
        return not is_last


def _status(line: str) -> int:
    parts = line.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not (parts[1].isascii() and parts[1].isdigit()):
        raise ContractError(f"response: status line {line[:80]!r}")
    return int(parts[1])


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise ContractError(f"response: header line {line[:80]!r}")
    return name.strip().lower(), value.strip()
