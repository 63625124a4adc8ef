# SPDX-License-Identifier: Apache-2.0
"""What a memory node and its client tell each other on the control connection, once both have proved the token.

    client -> node   its queue pairs and its port
    node -> client   its queue pairs in the same order, its port, and the region: address, length and key

Each message is JSON behind its length (u32) and before an HMAC-SHA256 with the connection's session key over the
sender's role and the JSON. The connection then stays open and silent: whoever closes it ends the other's queue pairs.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import time
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slacktier.errors import ContractError
from slacktier_native.row_handshake import receive_exactly

MESSAGE_BYTES_MAX: Final = 64 << 10
ENDS_MAX: Final = 128
CLIENT, NODE = b"rdma-client", b"rdma-node"
_LENGTH: Final = struct.Struct("<I")
_MAC_BYTES: Final = 32

U24 = Annotated[int, Field(ge=0, lt=1 << 24)]
U32 = Annotated[int, Field(ge=0, lt=1 << 32)]
U64 = Annotated[int, Field(ge=0, lt=1 << 64)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class End(_Message):
    """One queue pair: its number and the first packet number that it sends."""

    number: U24
    first_psn: U24


class PortFacts(_Message):
    """A port, as st_rdma_port in st_rdma.h has it. mtu: 1 to 5 for 256 to 4096 bytes."""

    gid: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    lid: Annotated[int, Field(ge=0, lt=1 << 16)]
    mtu: Annotated[int, Field(ge=1, le=5)]
    ethernet: bool
    reads_max: Annotated[int, Field(ge=1, le=255)]


class RegionFacts(_Message):
    """Where the table's data pages lie in the node's memory, in order of page id, and the key to read them."""

    address: U64
    byte_count: U64
    key: U32


class ClientFacts(_Message):
    ends: Annotated[list[End], Field(min_length=1, max_length=ENDS_MAX)]
    port: PortFacts


class NodeFacts(_Message):
    """error: why the node made no queue pairs; then all else is None."""

    error: Annotated[str, Field(max_length=500)] = ""
    ends: list[End] | None = None
    port: PortFacts | None = None
    region: RegionFacts | None = None


_M = TypeVar("_M", bound=_Message)


def _mac(key: bytes, role: bytes, body: bytes) -> bytes:
    return hmac.new(key, role + body, hashlib.sha256).digest()


def send(sock: socket.socket, key: bytes, role: bytes, message: _Message) -> None:
    body = message.model_dump_json().encode()
    sock.sendall(_LENGTH.pack(len(body)) + body + _mac(key, role, body))


def receive(sock: socket.socket, key: bytes, role: bytes, kind: type[_M], timeout_s: float) -> _M:
    """The message that a peer of that role signed, within timeout_s; raises ContractError for anything else."""
    deadline = time.monotonic() + timeout_s
    (length,) = _LENGTH.unpack(receive_exactly(sock, _LENGTH.size, deadline))
    if length > MESSAGE_BYTES_MAX:
        raise ContractError(f"RDMA control connection: message of {length} bytes, expected at most {MESSAGE_BYTES_MAX}")
    body, mac = receive_exactly(sock, length, deadline), receive_exactly(sock, _MAC_BYTES, deadline)
    if not hmac.compare_digest(mac, _mac(key, role, body)):
        raise ContractError("RDMA control connection: a message is not signed with the session's key")
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ContractError(f"RDMA control connection: {where or 'message'}: {first['msg']}") from exc
