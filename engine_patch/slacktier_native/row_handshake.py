# SPDX-License-Identifier: Apache-2.0
"""How a row connection is opened: both ends prove that they know the token before a row or an address is told.

    server -> client   magic 8 | server nonce 32
    client -> server   client nonce 32 | table uuid 16 | layer id u32 | HMAC 32
    server -> client   status u32; if 0: superblock 4096 | HMAC 32

A table uuid of zeros asks for the only table that the server has for that layer.

Each HMAC-SHA256 is keyed with the token and covers its sender's role, both nonces and what it sends, so that neither
can be replayed or answered by someone without the token. The token itself never travels. Rows are not encrypted:
they are model weights on a network that the operator chose; what is secret is who may ask.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Final

from slacktier.errors import ContractError, TierUnavailableError
from slacktier.page import PAGE_BYTES, Superblock, decode_superblock, encode_superblock
from slacktier.tiers import Tier

MAGIC: Final = b"SLKROWS1"
SEED_MAGIC: Final = b"SLKSEED1"  # a prefill instance's seed server: the same opening, then slacktier_seeding/wire.py
RDMA_MAGIC: Final = b"SLKRDMA1"  # a memory node's control connection: the same opening, then rdma_exchange.py
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
TOKEN_BYTES_MIN: Final = 16
ANY_TABLE: Final = uuid.UUID(int=0)
_ASK: Final = struct.Struct("<32s16sI32s")
_STATUS: Final = struct.Struct("<I")
REFUSALS: Final = {1: "wrong token", 2: "no such table or layer", 3: "too many connections"}
Lookup = Callable[[uuid.UUID, int], Superblock | None]


def _mac(token: bytes, role: bytes, *parts: bytes) -> bytes:
    return hmac.new(token, role + b"".join(parts), hashlib.sha256).digest()


def receive_exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    """All of count bytes before a time.monotonic() instant: a peer that drips does not hold its place."""
    chunks = bytearray()
    while len(chunks) < count:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = sock.recv(count - len(chunks))
        if not chunk:
            raise ContractError(f"row connection: closed after {len(chunks)} of {count} bytes of the handshake")
        chunks += chunk
    return bytes(chunks)


def refuse(sock: socket.socket, status: int, magic: bytes = MAGIC) -> None:
    """Greet a peer and tell it at once why it is not served; REFUSALS has the reasons."""
    sock.sendall(magic + os.urandom(NONCE_BYTES) + _STATUS.pack(status))


def accept(sock: socket.socket, token: bytes, find: Lookup, *, timeout_s: float = 2.0) -> tuple[uuid.UUID, int] | None:
    """The server's side: the table and layer that an authenticated peer gets, or None after a refusal."""
    session = accept_session(sock, token, find, MAGIC, timeout_s=timeout_s)
    return None if session is None else session[0]


def _session_key(token: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """What both ends sign later messages of this connection with."""
    return _mac(token, b"session", server_nonce, client_nonce)


def accept_session(
    sock: socket.socket, token: bytes, find: Lookup, magic: bytes, *, timeout_s: float
) -> tuple[tuple[uuid.UUID, int], bytes] | None:
    """As accept(), for the service of that magic, with the connection's session key."""
    deadline = time.monotonic() + timeout_s
    server_nonce = os.urandom(NONCE_BYTES)
    sock.sendall(magic + server_nonce)
    client_nonce, raw_uuid, layer_id, mac = _ASK.unpack(receive_exactly(sock, _ASK.size, deadline))
    asked = raw_uuid + struct.pack("<I", layer_id)
    if not hmac.compare_digest(mac, _mac(token, b"client", server_nonce, client_nonce, asked)):
        sock.sendall(_STATUS.pack(1))
        return None
    superblock = find(uuid.UUID(bytes=raw_uuid), layer_id)
    if superblock is None:
        sock.sendall(_STATUS.pack(2))
        return None
    page = encode_superblock(superblock)
    sock.sendall(_STATUS.pack(0) + page + _mac(token, b"server", server_nonce, client_nonce, page))
    return (superblock.table_uuid, layer_id), _session_key(token, server_nonce, client_nonce)


def connect(
    sock: socket.socket, token: bytes, table: uuid.UUID | None, layer_id: int, target: str, *, timeout_s: float = 2.0
) -> Superblock:
    """The client's side: the superblock of what is served, from a server that knows the token.

    table   None: the only one that the server has for this layer
    raises  TierUnavailableError if the server refuses, ContractError if it is not what it should be
    """
    return connect_session(sock, token, table, layer_id, target, MAGIC, timeout_s=timeout_s)[0]


_SERVERS: Final = {
    MAGIC: ("row server", Tier.TCP),
    RDMA_MAGIC: ("memory node", Tier.RDMA),
    SEED_MAGIC: ("seed server", Tier.TCP),
}


def connect_session(
    sock: socket.socket, token: bytes, table: uuid.UUID | None, layer_id: int, target: str, magic: bytes, *,
    timeout_s: float,
) -> tuple[Superblock, bytes]:  # fmt: skip
    """As connect(), for the service of that magic, with the connection's session key."""
    server, tier = _SERVERS[magic]
    deadline = time.monotonic() + timeout_s
    hello = receive_exactly(sock, len(magic) + NONCE_BYTES, deadline)
    if not hello.startswith(magic):
        raise ContractError(f"{target}: not a SlackTier {server}: it says {hello[:8]!r}, expected {magic!r}")
    server_nonce, client_nonce = hello[len(magic) :], os.urandom(NONCE_BYTES)
    asked = (table or ANY_TABLE).bytes + struct.pack("<I", layer_id)
    sock.sendall(client_nonce + asked + _mac(token, b"client", server_nonce, client_nonce, asked))
    (status,) = _STATUS.unpack(receive_exactly(sock, _STATUS.size, deadline))
    if status:
        reason = REFUSALS.get(status, f"status {status}")
        raise TierUnavailableError(
            f"{target}: {server} refused layer {layer_id} of {table or 'its table'}: {reason}",
            tier=tier.value, operation="connect", target=target,
        )  # fmt: skip
    answer = receive_exactly(sock, PAGE_BYTES + MAC_BYTES, deadline)
    page, mac = answer[:PAGE_BYTES], answer[PAGE_BYTES:]
    if not hmac.compare_digest(mac, _mac(token, b"server", server_nonce, client_nonce, page)):
        raise ContractError(f"{target}: the {server} does not know the token")
    superblock = decode_superblock(page)
    if superblock.layer_id != layer_id or table not in (None, superblock.table_uuid):
        raise ContractError(
            f"{target}: serves layer {superblock.layer_id} of table {superblock.table_uuid}, "
            f"expected layer {layer_id} of {table or 'any'}"
        )
    return superblock, _session_key(token, server_nonce, client_nonce)
