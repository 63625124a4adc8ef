# SPDX-License-Identifier: Apache-2.0
"""Pulls a request's rows of one layer from its prefill instance, in one read, before an instant."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier.page import Superblock
from slacktier.tiers import Tier
from slacktier_native import row_handshake
from slacktier_seeding import wire


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a prefill instance sent: row_ids [N] ascending, records [N, record_bytes] of sent's region, unchecked."""

    sent: Superblock
    row_ids: npt.NDArray[np.uint32]
    records: npt.NDArray[np.uint8]


def pull(
    address: tuple[str, int], token: bytes, layer: Superblock, room: int, row_ids: npt.NDArray[np.int64], *,
    deadline_s: float,
) -> Pulled:  # fmt: skip
    """The rows that a prefill instance keeps for a room, of those asked for.

    layer       whose rows: the superblock of the region that this instance reads
    row_ids     in order of use, repeats allowed; ids below 0 are left out, and all but the last ROWS_MAX
    deadline_s  time.monotonic() instant at which it is given up
    raises      TierUnavailableError if the server is away, refuses or is late; ContractError if it answers nonsense
    """
    ids = np.unique(row_ids[row_ids >= 0][-wire.ROWS_MAX :]).astype(np.uint32)
    target = f"seed server {address[0]}:{address[1]}"
    if ids.size == 0:
        raise ConfigError(f"{target}: no row asked for")
    try:
        with socket.create_connection(address, timeout=_left_s(deadline_s)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sent, _ = row_handshake.connect_session(
                sock, token, layer.table_uuid, layer.layer_id, target, row_handshake.SEED_MAGIC,
                timeout_s=_left_s(deadline_s),
            )  # fmt: skip
            return _exchange(sock, sent, room, ids, deadline_s, target)
    except OSError as exc:
        raise TierUnavailableError(
            f"{target}: {exc.strerror or exc}", tier=Tier.TCP.value, operation="pull", target=target,
            errno=exc.errno or 0,
        ) from exc  # fmt: skip


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no time is left")
    return left_s


def _exchange(
    sock: socket.socket, sent: Superblock, room: int, ids: npt.NDArray[np.uint32], deadline_s: float, target: str
) -> Pulled:
    sock.settimeout(_left_s(deadline_s))
    sock.sendall(wire.REQUEST.pack(wire.REQUEST_MAGIC, ids.size, room, wire.ids_crc(ids), 0) + ids.tobytes())
    header = wire.receive(sock, wire.REPLY.size, deadline_s, target).tobytes()
    magic, status, answered, count, record_bytes = wire.REPLY.unpack(header)
    if magic != wire.REPLY_MAGIC or answered != room or status not in wire.STATUSES:
        raise ContractError(f"{target}: reply {header.hex()} is not one to room {room}")
    if status:
        raise ContractError(f"{target}: refused the request: {os.strerror(status)}")
    present = wire.receive(sock, -(-ids.size // 8), deadline_s, target)
    there = np.unpackbits(present, count=ids.size, bitorder="little").astype(np.bool_)
    if count != there.sum() or record_bytes != sent.record_bytes:
        raise ContractError(
            f"{target}: {count} records of {record_bytes} bytes, expected {there.sum()} of {sent.record_bytes}"
        )
    records = wire.receive(sock, count * record_bytes, deadline_s, target).reshape(count, record_bytes)
    return Pulled(sent, ids[there], records)
