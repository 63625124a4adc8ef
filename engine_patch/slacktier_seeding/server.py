# SPDX-License-Identifier: Apache-2.0
"""Sends what a SeedStore keeps to decode instances that know the token; one thread per connection."""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import threading
import time
import uuid
from types import TracebackType
from typing import Final

import numpy as np

from slacktier.errors import ConfigError, ContractError
from slacktier.page import Superblock
from slacktier_native import row_handshake, row_link
from slacktier_seeding import wire
from slacktier_seeding.store import SeedStore

_IDLE_S: Final = 3600.0  # keepalive notices a peer that is gone much earlier


class _Handler(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        self.server.owner.serve_peer(self.request)


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: SeedServer, connections_max: int) -> None:
        self.owner = owner
        self.request_queue_size = connections_max
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)


class SeedServer:
    """Serves a store's rows; a request is answered at once with what is there.

    timeout_s        a peer that is silent within a message for longer is cut off
    connections_max  further peers are refused with a reason
    """

    def __init__(
        self, store: SeedStore, token: bytes, *, host: str = "127.0.0.1", port: int = 0,
        timeout_s: float = row_link.TIMEOUT_S, connections_max: int = 64,
    ) -> None:  # fmt: skip
        if len(token) < row_handshake.TOKEN_BYTES_MIN:
            raise ConfigError(f"token of {len(token)} bytes, expected at least {row_handshake.TOKEN_BYTES_MIN}")
        self._store, self._token, self._timeout_s = store, token, timeout_s
        self._connections_max = connections_max
        self._peers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.refused = 0
        try:
            self._listener = _Listener((host, port), self, connections_max)
        except OSError as exc:
            raise ConfigError(f"seed server on {host}:{port}: {exc.strerror or exc}") from exc
        self.address: tuple[str, int] = self._listener.socket.getsockname()[:2]
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.05,), name="seeds-accept", daemon=True
        )
        self._thread.start()

    def serve_peer(self, sock: socket.socket) -> None:
        """One connection until its peer closes it or breaks the protocol."""
        with self._lock:
            full = len(self._peers) >= self._connections_max
            if not full:
                self._peers.add(sock)
        try:
            sock.settimeout(self._timeout_s)
            if full:
                row_handshake.refuse(sock, 3, row_handshake.SEED_MAGIC)
            else:
                self._serve(sock)
        except (OSError, ContractError):
            self._count_refused()  # it broke off or spoke another protocol
        finally:
            with self._lock:
                self._peers.discard(sock)

    def _serve(self, sock: socket.socket) -> None:
        row_link.tune(sock, self._timeout_s)
        session = row_handshake.accept_session(
            sock, self._token, self._find, row_handshake.SEED_MAGIC, timeout_s=self._timeout_s
        )
        if session is None:
            self._count_refused()
            return
        layer_id = session[0][1]
        while self._answer(sock, layer_id):
            pass

    def _answer(self, sock: socket.socket, layer_id: int) -> bool:
        """One request; False when the peer has closed the connection."""
        sock.settimeout(_IDLE_S)
        if not sock.recv(1, socket.MSG_PEEK):
            return False
        deadline_s = time.monotonic() + self._timeout_s
        header = wire.receive(sock, wire.REQUEST.size, deadline_s, "decode instance").tobytes()
        magic, count, room, crc, reserved = wire.REQUEST.unpack(header)
        sane = magic == wire.REQUEST_MAGIC and 0 < count <= wire.ROWS_MAX and reserved == 0
        ids = np.empty(0, np.uint32)
        if sane:
            ids = wire.receive(sock, 4 * count, deadline_s, "decode instance").view(np.uint32)
            sane = wire.ids_crc(ids) == crc and bool((ids[1:] > ids[:-1]).all())
        sock.settimeout(self._timeout_s)
        if not sane:
            sock.sendall(wire.REPLY.pack(wire.REPLY_MAGIC, errno.EPROTO, room, 0, 0))
            raise ContractError("seed request: magic, count, checksum or order of the ids is wrong")
        found, records = self._store.take(room, layer_id)
        wanted = np.isin(found, ids, assume_unique=True)
        present = np.packbits(np.isin(ids, found, assume_unique=True), bitorder="little")
        head = wire.REPLY.pack(wire.REPLY_MAGIC, 0, room, int(wanted.sum()), records.shape[1])
        sock.sendall(head + present.tobytes())
        sock.sendall(np.ascontiguousarray(records[wanted]).data)
        return True

    def _find(self, table: uuid.UUID, layer_id: int) -> Superblock | None:
        sb = self._store.superblocks.get(layer_id)
        return sb if sb is not None and table in (row_handshake.ANY_TABLE, sb.table_uuid) else None

    def _count_refused(self) -> None:
        with self._lock:
            self.refused += 1

    def close(self) -> None:
        """Cut all connections and stop; idempotent."""
        self._listener.shutdown()
        with self._lock:
            peers = list(self._peers)
        for sock in peers:
            with contextlib.suppress(OSError):  # it has just ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.server_close()
        self._thread.join()

    def __enter__(self) -> SeedServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
