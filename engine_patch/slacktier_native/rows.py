# SPDX-License-Identifier: Apache-2.0
"""Rows over TCP: a server of regions that this process holds, and a client that asks for rows of one layer.

Python makes and authenticates the connection (row_link.py); from then on each end is one C loop without the GIL
(native/src/rows.c), so that a server's threads run side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, ContractError
from slacktier.page import Superblock
from slacktier.tiers import Tier
from slacktier_native import row_handshake, row_link
from slacktier_native._lib import CRowsCounters, library
from slacktier_native.pages import PageCodec
from slacktier_native.row_link import TIMEOUT_S
from slacktier_native.sources import MemorySpec, SourcePool, SourceSpec

ROWS_MAX: Final = 8192


class RowClient:
    """One authenticated connection to one layer of one table."""

    def __init__(
        self, host: str, port: int, token: bytes, table: uuid.UUID, layer_id: int, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.target = f"{host}:{port}"
        self._handle: int | None = None
        fd, self.superblock = row_link.connect(host, port, token, table, layer_id, timeout_s)
        handle, layout = ctypes.c_void_p(), PageCodec(self.superblock).layout
        rc = library().st_rows_client_open(fd, ctypes.byref(layout), int(timeout_s * 1e3), ctypes.byref(handle))
        if rc < 0 or handle.value is None:
            os.close(fd)
            raise row_link.failed(self.target, "connect", -rc, os.strerror(-rc))
        self._handle = handle.value

    def fetch(self, row_ids: Sequence[int] | npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        """Rows [N, row_bytes] uint8 in order of the ids, each checked; at most ROWS_MAX ids.

        raises  ContractError if the server sent another row, TierUnavailableError if it failed or fell silent
        """
        if self._handle is None:
            raise ConfigError("the row client is closed")
        ids = np.ascontiguousarray(row_ids, dtype=np.uint32)
        if not 0 < ids.size <= ROWS_MAX:
            raise ConfigError(f"{ids.size} row ids in a request, expected 1 to {ROWS_MAX}")
        records = np.empty((ids.size, self.superblock.record_bytes), np.uint8)
        bad_row = ctypes.c_uint32()
        rc = library().st_rows_fetch(
            self._handle, ids.ctypes.data, ids.size, records.ctypes.data, ctypes.byref(bad_row)
        )
        if rc == -errno.EBADMSG:
            raise ContractError(f"row server {self.target}: row {bad_row.value} is not what it says, or damaged")
        if rc < 0:
            raise row_link.failed(self.target, "read", -rc, os.strerror(-rc))
        return records[:, : self.superblock.row_bytes]

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._handle is not None:
            library().st_rows_client_close(self._handle)
            self._handle = None

    def __enter__(self) -> RowClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class RowServer:
    """Serves the rows of regions to peers that know the token; one thread per connection, one copy for all.

    loaded           called with each source once it is in memory
    connections_max  further peers are refused with a reason, those that have not authenticated yet count as well
    """

    def __init__(
        self,
        sources: Sequence[SourceSpec | MemorySpec],
        token: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        timeout_s: float = TIMEOUT_S,
        connections_max: int = 64,
        loaded: Callable[[SourceSpec | MemorySpec], None] = lambda spec: None,
    ) -> None:
        if len(token) < row_handshake.TOKEN_BYTES_MIN:
            raise ConfigError(f"token of {len(token)} bytes, expected at least {row_handshake.TOKEN_BYTES_MIN}")
        self._token, self._timeout_s, self._connections_max = token, timeout_s, connections_max
        self._pool = SourcePool()
        self._tables: dict[tuple[uuid.UUID, int], tuple[int, Superblock]] = {}
        self._peers: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._counters = CRowsCounters()
        self._refused = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:  # before the regions, which take long to load
            self._listener = socket.create_server((host, port), family=family, backlog=connections_max)
        except OSError as exc:
            raise ConfigError(f"row server on {host}:{port}: {exc.strerror or exc}") from exc
        try:
            for spec in sources:
                if spec.tier is not Tier.DRAM:
                    raise ConfigError(f"{spec.label}: a row server serves from memory, expected tier dram")
                handle, sb = self._pool.get(spec)
                self._tables[sb.table_uuid, sb.layer_id] = (handle, sb)
                loaded(spec)
        except BaseException:
            self._listener.close()
            self._pool.close()
            raise
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, name="rows-accept", daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return  # close() has closed the listener
            with self._lock:
                full = len(self._peers) >= self._connections_max
                if not full:
                    thread = threading.Thread(target=self._serve, args=(sock,), name="rows-peer", daemon=True)
                    self._peers[sock] = thread
                    thread.start()
            if full:
                self._refuse(sock)

    def _refuse(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):  # a peer that is gone needs no reason
            sock.settimeout(self._timeout_s)
            row_handshake.refuse(sock, 3)

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                self._serve_peer(sock)
        except (OSError, ContractError):
            self._count_refused()  # it broke off or spoke another protocol: nothing was told to it
        finally:
            with self._lock:
                self._peers.pop(sock, None)

    def _serve_peer(self, sock: socket.socket) -> None:
        sock.settimeout(self._timeout_s)
        row_link.tune(sock, self._timeout_s)
        asked = row_handshake.accept(sock, self._token, self._find, timeout_s=self._timeout_s)
        if asked is None:
            self._count_refused()
            return
        sock.settimeout(None)
        handle, _ = self._tables[asked]
        library().st_rows_serve(handle, sock.fileno(), int(self._timeout_s * 1e3), ctypes.byref(self._counters))

    def _count_refused(self) -> None:
        with self._lock:  # apart from C's counter of the same name, which other threads add to
            self._refused += 1

    def _find(self, table: uuid.UUID, layer_id: int) -> Superblock | None:
        if table == row_handshake.ANY_TABLE:
            candidates = [sb for (_, layer), (_, sb) in self._tables.items() if layer == layer_id]
            return candidates[0] if len(candidates) == 1 else None
        found = self._tables.get((table, layer_id))
        return found[1] if found else None

    def stats(self) -> dict[str, Any]:
        """Requests, rows and bytes served, peers refused or cut off, connections now."""
        counters = {name: int(getattr(self._counters, name)) for name in ("requests", "rows", "bytes", "refused")}
        counters["refused"] += self._refused
        return {**counters, "connections": len(self._peers)}

    def close(self) -> None:
        """End all connections, then let the regions go; idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()
        with self._lock:
            peers = list(self._peers.items())
        for sock, _ in peers:
            with contextlib.suppress(OSError):  # it has just ended by itself
                sock.shutdown(socket.SHUT_RDWR)
        for _, thread in peers:
            thread.join()
        self._pool.close()

    def __enter__(self) -> RowServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
