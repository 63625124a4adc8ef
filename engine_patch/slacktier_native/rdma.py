# SPDX-License-Identifier: Apache-2.0
"""Connections to memory nodes: made and authenticated here, then given to C (native/src/rdma_read.c).

Python opens the control connection (row_handshake.py) and exchanges queue pairs over it (rdma_exchange.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import uuid
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier.page import PAGE_BYTES, Superblock, same_rows
from slacktier.tiers import Tier
from slacktier_native import rdma_exchange, rdma_ports, row_handshake
from slacktier_native._lib import CRdmaCounters, CRdmaEnd, CRdmaPort, CRdmaRegion, CRdmaSettings, library
from slacktier_native.link_keeper import LinkKeeper
from slacktier_native.pages import PageCodec
from slacktier_native.rdma_exchange import ClientFacts, End, NodeFacts, PortFacts
from slacktier_native.row_link import TIMEOUT_S, read_token, tune

WHY_CHARS: Final = 160
READ_ERRORS: Final = {
    errno.EHOSTDOWN: "the node's device does not answer any more (retries exceeded)",
    errno.EACCES: "the node refused the address or key (remote access error)",
    errno.ECONNABORTED: "the queue pair was in error already (flushed)",
    errno.EREMOTEIO: "a READ ended in another error",
    errno.ENODATA: "a READ brought other than the bytes asked for",
    errno.ETIMEDOUT: "READs did not end in time",
    errno.ECONNRESET: "the node closed the control connection",
}


def rdma_library() -> None:
    """Load libibverbs; raises ConfigError with why it is not to be had."""
    why = ctypes.create_string_buffer(WHY_CHARS)
    if library().st_rdma_available(why) < 0:
        raise ConfigError(why.value.decode(errors="replace"))


class ReadUnit(StrEnum):
    """What one READ brings: a row's record, or the whole page that it is in."""

    RECORD = "record"
    PAGE = "page"


@dataclass(frozen=True, slots=True)
class RdmaSettings:
    """How a node's memory is read. Defaults and what they rest on: docs/rdma.md.

    device, port, gid_index  "", 0 and None: the first active port with a usable GID
    threads       that post and poll for one layer; queue_pairs: of each thread
    depth         READs of a queue pair that are posted and not over; a multiple of 32
    ack_timeout   the device resends after 4.096 us x 2^ack_timeout, and gives up after retry_count times
    service_level, traffic_class  as the fabric's lossless class wants them
    timeout_s     a batch of reads that takes longer counts as a dead node
    """

    device: str = ""
    port: int = 0
    gid_index: int | None = None
    unit: ReadUnit = ReadUnit.RECORD
    threads: int = 4
    queue_pairs: int = 2
    depth: int = 128
    ack_timeout: int = 12
    retry_count: int = 3
    service_level: int = 0
    traffic_class: int = 0
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        ranges = (
            ("port", self.port, 0, 255), ("GID index", self.gid_index or 0, 0, 255), ("threads", self.threads, 1, 16),
            ("queue pairs", self.queue_pairs, 1, 8), ("depth", self.depth, 32, 1 << 14),
            ("ack timeout", self.ack_timeout, 1, 31), ("retry count", self.retry_count, 1, 7),
            ("service level", self.service_level, 0, 15), ("traffic class", self.traffic_class, 0, 255),
        )  # fmt: skip
        for name, value, least, most in ranges:
            if not least <= value <= most:
                raise ConfigError(f"RDMA {name} {value}: expected {least} to {most}")
        if self.depth % 32:
            raise ConfigError(f"RDMA depth {self.depth}: expected a multiple of 32")
        if not self.timeout_s > 0:
            raise ConfigError(f"RDMA timeout of {self.timeout_s} s: expected more than 0")


@dataclass(frozen=True, slots=True)
class RdmaSpec:
    """A replica in a memory node: one layer's rows by one-sided READs.

    host, port  of the node's control connection
    token_file  what proves to the node who asks; read again for each connection, so that a token can be changed
    table       None: the only table that the node has for this layer
    """

    tier: ClassVar[Tier] = Tier.RDMA
    device: ClassVar[str] = ""
    delay: ClassVar[DelayModel | None] = None

    host: str
    port: int
    token_file: Path
    layer_id: int
    table: uuid.UUID | None = None
    settings: RdmaSettings = RdmaSettings()

    def __post_init__(self) -> None:
        if not self.host or not 0 < self.port < 1 << 16:
            raise ConfigError(f"memory node {self.host!r}:{self.port}: expected a host and a port of 1 to 65535")

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def label(self) -> str:
        return f"rdma:{self.address}"


class RdmaLink:
    """One memory node as a source of a core, and the keeper of its connection.

    like    a replica's superblock: with it, a node that cannot be reached yet is a link that is down, not an error
    raises  ConfigError for what this machine lacks, with the remedy; TierUnavailableError and ContractError for what
            the node lacks
    """

    def __init__(self, spec: RdmaSpec, *, like: Superblock | None = None) -> None:
        self._spec = spec
        self._choice = rdma_ports.choose(spec.settings.device, spec.settings.port, spec.settings.gid_index)
        rdma_library()
        self._control: socket.socket | None = None
        self._client: int | None = None
        try:
            self.superblock = self._first_connection(like)
            self.handle = self._open_source()
        except BaseException:
            library().st_rdma_close(self._client)
            self._drop_control()
            raise
        self.keeper = LinkKeeper(spec.label, self.handle, self._reconnect)

    def counters(self) -> dict[str, int]:
        """READs, rows, bytes and failures by kind since open; `connections` counts those made.

        depth, reads_max  READs posted per queue pair, and those that both devices allow on the wire
        """
        raw, depth, reads_max = CRdmaCounters(), ctypes.c_uint32(), ctypes.c_uint32()
        library().st_rdma_read_counters(self._client, ctypes.byref(raw))
        library().st_rdma_limits(self._client, ctypes.byref(depth), ctypes.byref(reads_max))
        found = {name: int(getattr(raw, name)) for name, *_ in CRdmaCounters._fields_}
        return {**found, "depth": depth.value, "reads_max": reads_max.value}

    def close(self) -> None:
        """End the keeper and drop this side's reference to the source.

        A core that still has one keeps the device, whose reads then fail: the node sees the connection close.
        """
        self.keeper.close()
        self._drop_control()
        library().st_source_close(self.handle)

    def _drop_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def _first_connection(self, like: Superblock | None) -> Superblock:
        try:
            return self._connect()
        except TierUnavailableError as exc:
            if like is None or exc.errno == 0:  # a refusal is no outage
                raise
        self._need_client(like)
        return like

    def _open_source(self) -> int:
        handle = ctypes.c_void_p()
        rc = library().st_rdma_source(self._client, ctypes.byref(handle))
        if rc < 0 or handle.value is None:
            raise self._failed("open", -rc, os.strerror(-rc))
        return handle.value

    def _failed(self, operation: str, code: int, why: str, hint: str = "") -> TierUnavailableError:
        return TierUnavailableError(
            f"memory node {self._spec.address}: {operation} failed: {why}",
            tier=Tier.RDMA.value, operation=operation, target=self._spec.address, errno=code, hint=hint,
        )  # fmt: skip

    def _reconnect(self) -> None:
        """Raises ContractError for a node that has come back with other rows; the same rows may have a new epoch."""
        self._connect(self.superblock)
        library().st_rdma_source_attach(self.handle)

    def _connect(self, before: Superblock | None = None) -> Superblock:
        """A new control connection, new queue pairs, and one row read through them; before: whose rows they must be."""
        spec, timeout_s = self._spec, self._spec.settings.timeout_s
        token = read_token(spec.token_file)
        try:
            with contextlib.ExitStack() as undo:
                sock = undo.enter_context(socket.create_connection((spec.host, spec.port), timeout=timeout_s))
                tune(sock, timeout_s)
                superblock, key = row_handshake.connect_session(
                    sock, token, spec.table, spec.layer_id, spec.address, row_handshake.RDMA_MAGIC,
                    timeout_s=timeout_s,
                )  # fmt: skip
                if before is not None and not same_rows(superblock, before):
                    raise ContractError(
                        f"memory node {spec.address}: now serves other rows: table {superblock.table_uuid}, "
                        f"digest {superblock.source_digest.hex()[:16]}",
                        hint="serve the same table again, or set the layer's sources",
                    )
                self._join(sock, key, superblock)
                undo.pop_all()
        except OSError as exc:
            raise self._failed("connect", exc.errno or errno.ETIMEDOUT, str(exc)) from exc
        self._drop_control()
        self._control = sock
        return superblock

    def _join(self, sock: socket.socket, key: bytes, superblock: Superblock) -> None:
        """Exchange queue pairs and join them; one row read through them proves the way."""
        client, lib, why = self._need_client(superblock), library(), ctypes.create_string_buffer(WHY_CHARS)
        own = self._prepare(client)
        rdma_exchange.send(sock, key, rdma_exchange.CLIENT, own)
        node = rdma_exchange.receive(sock, key, rdma_exchange.NODE, NodeFacts, self._spec.settings.timeout_s)
        if node.error:
            raise self._failed("connect", 0, f"the node says: {node.error}")
        if node.ends is None or node.port is None or node.region is None or len(node.ends) != len(own.ends):
            raise ContractError(f"memory node {self._spec.address}: an answer without its queue pairs or region")
        sock.settimeout(None)
        ends = (CRdmaEnd * len(node.ends))(*(CRdmaEnd(end.number, end.first_psn) for end in node.ends))
        port, region = _c_port(node.port), CRdmaRegion(node.region.address, node.region.byte_count, node.region.key, 0)
        layout = PageCodec(superblock).layout
        rc = lib.st_rdma_use_layout(client, ctypes.byref(layout))
        if rc == 0:
            rc = lib.st_rdma_connect(client, ends, ctypes.byref(port), ctypes.byref(region), sock.fileno(), why)
        if rc < 0:
            raise self._failed("connect", -rc, _why(rc, why))
        rc = lib.st_rdma_try(client, why)
        if rc == -errno.EBADMSG:
            raise ContractError(f"memory node {self._spec.address}: first read: {why.value.decode(errors='replace')}")
        if rc < 0:
            raise self._failed("first read", -rc, _why(rc, why), "`slacktier doctor` lists this machine's GIDs")

    def _need_client(self, superblock: Superblock) -> int:
        """This end's device and buffers, opened once; what this machine refuses is no outage of the node's."""
        if self._client is not None:
            return self._client
        settings, layout = self._c_settings(), PageCodec(superblock).layout
        handle, why = ctypes.c_void_p(), ctypes.create_string_buffer(WHY_CHARS)
        rc = library().st_rdma_open(ctypes.byref(settings), ctypes.byref(layout), ctypes.byref(handle), why)
        if rc < 0 or handle.value is None:
            slots = settings.threads * settings.queue_pairs * settings.depth
            unit = PAGE_BYTES if settings.unit else superblock.record_bytes
            raise ConfigError(f"RDMA: {_why(rc, why)}", hint=rdma_ports.memlock_hint(slots * unit))
        self._client = handle.value
        return handle.value

    def _c_settings(self) -> CRdmaSettings:
        asked = self._spec.settings
        return CRdmaSettings(
            self._choice.device.encode(), self._choice.port, self._choice.gid_index, asked.threads, asked.queue_pairs,
            asked.depth, int(asked.unit is ReadUnit.PAGE), asked.ack_timeout, asked.retry_count, asked.service_level,
            asked.traffic_class, int(asked.timeout_s * 1e9),
        )  # fmt: skip

    def _prepare(self, client: int) -> ClientFacts:
        ends = (CRdmaEnd * (self._spec.settings.threads * self._spec.settings.queue_pairs))()
        port, why = CRdmaPort(), ctypes.create_string_buffer(WHY_CHARS)
        rc = library().st_rdma_prepare(client, ends, ctypes.byref(port), why)
        if rc < 0:
            raise self._failed("queue pairs", -rc, _why(rc, why), "`slacktier doctor` lists this machine's ports")
        return ClientFacts(ends=[End(number=e.number, first_psn=e.first_psn) for e in ends], port=_port_facts(port))


def _why(rc: int, why: ctypes.Array[ctypes.c_char]) -> str:
    text = why.value.decode(errors="replace")
    reason = READ_ERRORS.get(-rc, os.strerror(-rc))
    return f"{text}: {reason}" if text else reason


def _c_port(port: PortFacts) -> CRdmaPort:
    gid = (ctypes.c_uint8 * 16).from_buffer_copy(bytes.fromhex(port.gid))
    return CRdmaPort(gid, port.lid, port.mtu, port.ethernet, port.reads_max)


def _port_facts(port: CRdmaPort) -> PortFacts:
    return PortFacts(
        gid=bytes(port.gid).hex(), lid=port.lid, mtu=port.mtu, ethernet=bool(port.ethernet), reads_max=port.reads_max
    )


def read_superblock(spec: RdmaSpec) -> Superblock:
    """What a memory node says that it serves, of a connection made and tried as for reads; raises as RdmaLink does."""
    link = RdmaLink(spec)
    try:
        return link.superblock
    finally:
        link.close()
