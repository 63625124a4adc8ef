# SPDX-License-Identifier: Apache-2.0
"""Connections to row servers: made and authenticated here (row_handshake.py), then given to C (native/src/rows.c)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from slacktier.delay import DelayModel
from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier.page import Superblock, same_rows
from slacktier.tiers import Tier
from slacktier_native import row_handshake
from slacktier_native._lib import library
from slacktier_native.link_keeper import LinkKeeper
from slacktier_native.pages import PageCodec

TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """A replica behind a row server: rows by id over TCP.

    token_file  what proves to the server who asks; read again for each connection, so that a token can be changed
    table       None: the only table that the server has for this layer
    timeout_s   a server that is silent for longer counts as dead
    """

    tier: ClassVar[Tier] = Tier.TCP
    device: ClassVar[str] = ""
    delay: ClassVar[DelayModel | None] = None

    host: str
    port: int
    token_file: Path
    layer_id: int
    table: uuid.UUID | None = None
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if not self.host or not 0 < self.port < 1 << 16:
            raise ConfigError(f"row server {self.host!r}:{self.port}: expected a host and a port of 1 to 65535")
        if not 0.001 <= self.timeout_s <= 60:
            raise ConfigError(f"row server {self.address}: timeout of {self.timeout_s:g} s, expected 0.001 to 60")

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def label(self) -> str:
        return f"tcp:{self.address}"


def parse_address(text: str) -> tuple[str, int]:
    """HOST:PORT or [IPV6]:PORT; raises ConfigError for anything else."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""  # an IPv6 address without brackets does not say where it ends
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ConfigError(f"address {text!r}: expected HOST:PORT or [IPV6]:PORT")
    return host, int(port)


def read_superblock(spec: RowsSpec) -> Superblock:
    """What a row server says that it serves; raises as connect() does."""
    fd, superblock = connect(
        spec.host, spec.port, read_token(spec.token_file), spec.table, spec.layer_id, spec.timeout_s
    )
    os.close(fd)
    return superblock


def read_token(path: Path) -> bytes:
    """The token in a file, without the white space around it; raises ConfigError if it is too short to be one."""
    try:
        token = path.read_bytes().strip()
    except OSError as exc:
        raise ConfigError(f"token file {path}: {exc.strerror}") from exc
    if len(token) < row_handshake.TOKEN_BYTES_MIN:
        raise ConfigError(
            f"token file {path}: {len(token)} bytes, expected at least {row_handshake.TOKEN_BYTES_MIN}",
            hint="openssl rand -hex 32 makes one",
        )
    return token


def tune(sock: socket.socket, timeout_s: float) -> None:
    """No delay for small requests; a peer that stops answering is noticed within timeout_s, also when idle."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout_s * 1e3))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(timeout_s)))


def failed(target: str, operation: str, code: int, why: str) -> TierUnavailableError:
    """What a row server's failure is raised as."""
    return TierUnavailableError(
        f"row server {target}: {operation} failed: {why}",
        tier=Tier.TCP.value, operation=operation, target=target, errno=code,
    )  # fmt: skip


def connect(
    host: str, port: int, token: bytes, table: uuid.UUID | None, layer_id: int, timeout_s: float
) -> tuple[int, Superblock]:
    """(file descriptor, superblock) of a tuned and authenticated connection; the descriptor is the caller's.

    raises  TierUnavailableError if the server cannot be reached or refuses, ContractError if it is not what it should
            be
    """
    target = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            tune(sock, timeout_s)
            superblock = row_handshake.connect(sock, token, table, layer_id, target, timeout_s=timeout_s)
            sock.settimeout(None)
            return sock.detach(), superblock
    except OSError as exc:
        raise failed(target, "connect", exc.errno or 0, str(exc)) from exc


class RowLink:
    """One row server as a source of a core, and the keeper of its connection.

    like  a replica's superblock: with it, a server that cannot be reached yet is a link that is down, not an error
    """

    def __init__(self, spec: RowsSpec, *, like: Superblock | None = None) -> None:
        self._spec = spec
        try:
            fd, self.superblock = self._connect()
        except TierUnavailableError as exc:
            if like is None or exc.errno == 0:  # a refusal is no outage
                raise
            fd, self.superblock = -1, like
        layout, handle = PageCodec(self.superblock).layout, ctypes.c_void_p()
        rc = library().st_rows_source_open(
            fd, ctypes.byref(layout), int(spec.timeout_s * 1e3), ctypes.byref(handle)
        )  # fmt: skip
        if rc < 0 or handle.value is None:
            with contextlib.suppress(OSError):
                os.close(fd)
            raise failed(spec.address, "open", -rc, os.strerror(-rc))
        self.handle = handle.value
        self.keeper = LinkKeeper(spec.label, self.handle, self._reconnect)

    def _connect(self) -> tuple[int, Superblock]:
        spec = self._spec
        token = read_token(spec.token_file)
        return connect(spec.host, spec.port, token, spec.table, spec.layer_id, spec.timeout_s)

    def _reconnect(self) -> None:
        """Raises ContractError for a server that has come back with other rows; the same rows may have a new epoch."""
        fd, sb = self._connect()
        if not same_rows(sb, self.superblock):
            os.close(fd)
            raise ContractError(
                f"row server {self._spec.address}: now serves other rows: table {sb.table_uuid}, "
                f"digest {sb.source_digest.hex()[:16]}",
                hint="serve the same table again, or set the layer's sources",
            )
        rc = library().st_rows_source_attach(self.handle, fd, ctypes.byref(PageCodec(sb).layout))
        if rc < 0:
            os.close(fd)
            raise failed(self._spec.address, "connect", -rc, os.strerror(-rc))

    def close(self) -> None:
        """End the keeper and drop this side's reference to the source."""
        self.keeper.close()
        library().st_source_close(self.handle)
