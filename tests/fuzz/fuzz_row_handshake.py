# SPDX-License-Identifier: Apache-2.0
"""Both sides of the row connection's handshake: nobody without the token gets past either, and errors are ours."""

from __future__ import annotations

import contextlib
import socket
import uuid

from harness import fuzz

from slacktier.errors import ContractError, TierUnavailableError
from slacktier.page import RowFormat, State, Superblock
from slacktier_native import row_handshake

TOKEN, TABLE = b"0123456789abcdef", uuid.UUID(int=7)
SERVED = Superblock(
    table_uuid=TABLE, layer_id=1, epoch=1, row_count=3000, payload_bytes=256, scale_bytes=8,
    row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="fuzz", revision="", source="pattern", state=State.PARTIAL,
)  # fmt: skip


def one_input(data: bytes) -> None:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(1)
        far.sendall(data[1:])
        far.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ContractError, TierUnavailableError):
            if data[:1] > b"\x80":
                row_handshake.connect(near, TOKEN, TABLE, 1, "fuzzed")
                raise AssertionError("a server without the token was believed")
            assert row_handshake.accept(near, TOKEN, lambda *_: SERVED) is None


if __name__ == "__main__":
    fuzz(one_input, row_handshake)
