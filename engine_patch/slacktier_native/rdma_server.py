# SPDX-License-Identifier: Apache-2.0
"""A memory node: regions in this process's memory that authenticated clients read by RDMA, without its taking part.

A client connects over TCP, proves that it knows the token, names a table and layer, and gets an address, a key and
queue pairs (rdma_exchange.py). From then on its device reads by itself. The connection stays open for both to see that
the other is alive; when it ends, so do the client's queue pairs.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from slacktier.errors import ConfigError, ContractError, SlackTierError, TierUnavailableError
from slacktier.page import Superblock
from slacktier.tiers import Tier
from slacktier_native import rdma_exchange, rdma_ports, row_handshake
from slacktier_native.rdma_device import NodeDevice, QueuePairs
from slacktier_native.rdma_exchange import ClientFacts, NodeFacts, RegionFacts
from slacktier_native.row_link import TIMEOUT_S, tune
from slacktier_native.sources import MemorySpec, SourcePool, SourceSpec, memory_of

log = logging.getLogger(__name__)
TableKey = tuple[uuid.UUID, int]


@dataclass(slots=True)
class _Region:
    superblock: Superblock
    facts: RegionFacts
    registered: Any  # pyverbs' MR


class MemoryNode:
    """Serves regions of tier dram until stop(); one registration for all clients, read-only for them.

    token                      what clients must know, at least 16 bytes
    host, port                 where clients connect; port 0: any free one, `address` says which
    device, port_number, gid_index  "", 0 and None: the first active port with a usable GID
    timeout_s                  how long an opening may take, and after which a silent host counts as gone
    raises  ConfigError for what is missing, with the remedy; TierUnavailableError for what the device refuses
    """

    def __init__(
        self,
        sources: Sequence[SourceSpec | MemorySpec],
        token: bytes,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        device: str = "",
        port_number: int = 0,
        gid_index: int | None = None,
        timeout_s: float = TIMEOUT_S,
        clients_max: int = 64,
    ) -> None:
        if len(token) < row_handshake.TOKEN_BYTES_MIN:
            raise ConfigError(f"token of {len(token)} bytes, expected at least {row_handshake.TOKEN_BYTES_MIN}")
        for spec in sources:
            if spec.tier is not Tier.DRAM:
                raise ConfigError(f"{spec.label}: a memory node serves from memory, expected tier dram")
        self._sources, self._token, self._where = tuple(sources), token, (host, port)
        self._choice = rdma_ports.choose(device, port_number, gid_index)
        self._timeout_s, self._clients_max = timeout_s, clients_max
        self._pool = SourcePool()
        self._device: NodeDevice | None = None
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._regions: dict[TableKey, _Region] = {}
        self._clients: dict[socket.socket, tuple[threading.Thread, TableKey | None]] = {}
        self._lock = threading.Lock()
        self._refused = self._served = 0

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that clients connect to, once started."""
        if self._listener is None:
            raise ConfigError("the memory node is not started")
        host, port = self._listener.getsockname()[:2]
        return host, port

    def start(self) -> None:
        """Load the regions, register them, and accept clients from now on."""
        try:
            device = self._device = NodeDevice(self._choice)
            for spec in self._sources:
                self._register(device, spec)
            listener = self._listener = socket.create_server(self._where, backlog=self._clients_max)
        except OSError as exc:
            self.stop()
            raise ConfigError(f"memory node on {self._where[0]}:{self._where[1]}: {exc.strerror}") from exc
        except SlackTierError:
            self.stop()
            raise
        accept = threading.Thread(target=self._accept, args=(device, listener), name="rdma-accept", daemon=True)
        self._acceptor = accept
        accept.start()

    def _register(self, device: NodeDevice, spec: SourceSpec | MemorySpec) -> None:
        handle, superblock = self._pool.get(spec)
        address, byte_count = memory_of(handle)
        facts, registered = device.register(address, byte_count)
        self._regions[superblock.table_uuid, superblock.layer_id] = _Region(superblock, facts, registered)

    def _accept(self, device: NodeDevice, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # stop() has closed the listener
            with self._lock:
                full = len(self._clients) >= self._clients_max
                if not full:
                    thread = threading.Thread(target=self._serve, args=(device, sock), name="rdma-peer", daemon=True)
                    self._clients[sock] = thread, None
                    thread.start()
            if full:
                self._refuse(sock)

    def _refuse(self, sock: socket.socket) -> None:
        self._count_refused()
        with sock, contextlib.suppress(OSError):  # a peer that is gone needs no reason
            sock.settimeout(self._timeout_s)
            row_handshake.refuse(sock, 3, row_handshake.RDMA_MAGIC)

    def _count_refused(self) -> None:
        with self._lock:
            self._refused += 1

    def _serve(self, device: NodeDevice, sock: socket.socket) -> None:
        try:
            with sock:
                self._serve_client(device, sock)
        except (OSError, ContractError, TierUnavailableError) as exc:
            self._count_refused()  # it broke off, spoke another protocol, or the device had nothing for it
            log.warning("memory node: a client was cut off: %s", exc)
        finally:
            with self._lock:
                self._clients.pop(sock, None)

    def _serve_client(self, device: NodeDevice, sock: socket.socket) -> None:
        sock.settimeout(self._timeout_s)
        tune(sock, self._timeout_s)
        session = row_handshake.accept_session(
            sock, self._token, self._find, row_handshake.RDMA_MAGIC, timeout_s=self._timeout_s
        )
        if session is None:
            self._count_refused()
            return
        asked, key = session
        wanted = rdma_exchange.receive(sock, key, rdma_exchange.CLIENT, ClientFacts, self._timeout_s)
        with contextlib.closing(self._answer(device, sock, key, asked, wanted)):
            sock.settimeout(None)
            while sock.recv(1):  # nothing is due any more: it waits for the client to close
                raise ContractError("RDMA control connection: bytes after the exchange")

    def _answer(
        self, device: NodeDevice, sock: socket.socket, key: bytes, asked: TableKey, wanted: ClientFacts
    ) -> QueuePairs:
        """Make this end's queue pairs and tell them, with where the region lies."""
        try:
            pairs = device.answer(wanted.ends, wanted.port)
        except TierUnavailableError as exc:
            rdma_exchange.send(sock, key, rdma_exchange.NODE, NodeFacts(error=str(exc)[:500]))
            raise
        try:
            with self._lock:  # either the region is still offered, or withdraw() has not yet looked at this client
                region = self._regions.get(asked)
                if region is None:
                    raise ContractError(f"layer {asked[1]} of table {asked[0]} was withdrawn meanwhile")
                thread, _ = self._clients[sock]
                self._clients[sock] = thread, asked
                self._served += 1
            facts = NodeFacts(ends=pairs.ends, port=device.port, region=region.facts)
            rdma_exchange.send(sock, key, rdma_exchange.NODE, facts)
        except BaseException:
            pairs.close()
            raise
        return pairs

    def _find(self, table: uuid.UUID, layer_id: int) -> Superblock | None:
        if table == row_handshake.ANY_TABLE:
            candidates = [region.superblock for (_, layer), region in self._regions.items() if layer == layer_id]
            return candidates[0] if len(candidates) == 1 else None
        region = self._regions.get((table, layer_id))
        return None if region is None else region.superblock

    def withdraw(self, table: uuid.UUID, layer_id: int) -> None:
        """Offer a region no longer: reads of it fail and its clients are cut off; a no-op if it is not there."""
        with self._lock:
            region = self._regions.pop((table, layer_id), None)
            cut = [sock for sock, (_, asked) in self._clients.items() if asked == (table, layer_id)]
        if region is None:
            return
        region.registered.close()
        for sock in cut:
            _shut(sock)

    def stats(self) -> dict[str, Any]:
        """Clients now, clients served since start, peers refused or cut off, bytes that may be read."""
        with self._lock:
            offered = sum(region.facts.byte_count for region in self._regions.values())
            clients = {"clients": len(self._clients), "clients_served": self._served, "clients_refused": self._refused}
        return {**clients, "region_bytes": offered}

    def stop(self) -> None:
        """Cut all clients off, then let the regions and the device go; idempotent."""
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        if self._acceptor is not None:
            self._acceptor.join()
        with self._lock:
            clients = list(self._clients.items())
        for sock, _ in clients:
            _shut(sock)
        for _, (thread, _) in clients:
            thread.join()
        while self._regions:
            self._regions.popitem()[1].registered.close()
        if self._device is not None:
            self._device.close()
            self._device = None
        self._pool.close()

    def close(self) -> None:
        """As stop(): what a row server calls it."""
        self.stop()

    def __enter__(self) -> MemoryNode:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just ended by itself
        sock.shutdown(socket.SHUT_RDWR)
