# SPDX-License-Identifier: Apache-2.0
"""Rows over TCP between a real server and real clients, and against servers that lie: right rows or a clear error."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from test_lookup_core import ROWS, SEEDS, superblock, write_region

from slacktier.errors import ConfigError, ContractError, SlackTierError, TierUnavailableError
from slacktier.page import Superblock, encode_record
from slacktier.tiers import Tier
from slacktier_native import row_handshake
from slacktier_native.pages import pattern_check, pattern_fill
from slacktier_native.row_link import read_token
from slacktier_native.rows import RowClient, RowServer
from slacktier_native.sources import SourceSpec

TOKEN = b"0123456789abcdef0123456789abcdef"
TABLE = uuid.UUID(int=7)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RowServer]:
    paths = [write_region(tmp_path / f"layer{i}", superblock(i), SEEDS[i]) for i in SEEDS]
    with RowServer([SourceSpec(Tier.DRAM, (p,)) for p in paths], TOKEN, timeout_s=0.5) as opened:
        yield opened


def client(server: RowServer, layer_id: int = 1, token: bytes = TOKEN, table: uuid.UUID = TABLE) -> RowClient:
    return RowClient(*server.address, token, table, layer_id, timeout_s=0.5)


def assert_rows(ids: np.ndarray, rows: np.ndarray, layer_id: int = 1) -> None:
    assert pattern_check(SEEDS[layer_id], ids.astype(np.int64), np.ascontiguousarray(rows), 256, 8) == (0, -1)


def test_rows_come_back_in_order_of_the_ids(server: RowServer) -> None:
    rng = np.random.default_rng(0)
    with client(server, 1) as first, client(server, 14) as second:
        for count in (1, 700, 8192):
            ids = rng.integers(0, ROWS, count)
            assert_rows(ids, first.fetch(ids), 1)
            assert_rows(ids, second.fetch(ids), 14)
    server.close()
    assert server.stats()["rows"] == 2 * (1 + 700 + 8192)


def test_eight_clients_read_one_copy_at_once(server: RowServer) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with client(server) as mine:
                for _ in range(10):
                    ids = rng.integers(0, ROWS, 500)
                    assert_rows(ids, mine.fetch(ids))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_wrong_token_another_table_and_another_layer_are_refused(server: RowServer) -> None:
    with pytest.raises(TierUnavailableError, match="wrong token"):
        client(server, token=b"x" * 32)
    with pytest.raises(TierUnavailableError, match="no such table or layer"):
        client(server, table=uuid.UUID(int=8))
    with pytest.raises(TierUnavailableError, match="no such table or layer"):
        client(server, layer_id=2)
    server.close()  # waits for the threads that do the counting
    assert server.stats()["refused"] == 3
    assert server.stats()["rows"] == 0


def test_an_id_outside_the_table_is_an_error_and_cuts_this_client_only(server: RowServer) -> None:
    with client(server) as bad, client(server) as good:
        with pytest.raises(TierUnavailableError, match="out of range"):
            bad.fetch([ROWS])
        ids = np.arange(10)
        assert_rows(ids, good.fetch(ids))


def authenticated(server: RowServer) -> socket.socket:
    sock = socket.create_connection(server.address, timeout=2)
    row_handshake.connect(sock, TOKEN, TABLE, 1, "test")
    return sock


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 24,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack("<IIQII", 0x51524C53, 8193, 1, 0, 0),
        struct.pack("<IIQII", 0x51524C53, 2**32 - 1, 1, 0, 0),
        struct.pack("<IIQII", 0x51524C53, 0, 1, 0, 0),
        struct.pack("<IIQIII", 0x51524C53, 1, 1, 12345, 0, 7),
        struct.pack("<IIQII", 0x51524C53, 100, 1, 0, 0) + b"half a request",
    ],
    ids=["zeros", "http", "too-many", "huge", "none", "bad-crc", "half"],
)
def test_a_broken_request_ends_its_connection_and_no_other(server: RowServer, sent: bytes) -> None:
    with authenticated(server) as sock, client(server) as good:
        sock.sendall(sent)
        received = bytearray()
        with contextlib.suppress(ConnectionResetError):  # how a close with unread bytes looks from here
            while chunk := sock.recv(4096):
                received += chunk
        assert len(received) in (0, 24)  # nothing, or a reply header that says why
        ids = np.arange(10)
        assert_rows(ids, good.fetch(ids))


def test_a_peer_that_never_authenticates_is_cut_off(server: RowServer) -> None:
    with socket.create_connection(server.address, timeout=2) as sock:
        start = time.monotonic()
        while sock.recv(4096):
            pass
        assert time.monotonic() - start < 1.5


def test_further_connections_are_refused_with_a_reason(tmp_path: Path) -> None:
    path = write_region(tmp_path / "layer1", superblock(1), SEEDS[1])
    spec = SourceSpec(Tier.DRAM, (path,))
    with RowServer([spec], TOKEN, connections_max=1) as server, client(server) as first:
        with pytest.raises(TierUnavailableError, match="too many connections"):
            client(server)
        ids = np.arange(10)
        assert_rows(ids, first.fetch(ids))


def test_a_killed_server_is_a_clear_error(server: RowServer) -> None:
    with client(server) as mine:
        server.close()
        with pytest.raises(TierUnavailableError, match="read failed"):
            mine.fetch([1])
        with pytest.raises(TierUnavailableError, match="not connected"):
            mine.fetch([1])
    with pytest.raises(TierUnavailableError, match="connect failed"):
        client(server)


Reply = Callable[[Superblock, list[int]], bytes]


def record(sb: Superblock, row_id: int) -> bytes:
    weights, scales = np.empty((1, 256), np.uint8), np.empty((1, 8), np.uint8)
    pattern_fill(SEEDS[1], row_id, 1, 256, 8, weights, scales)
    return encode_record(sb, row_id, weights.tobytes() + scales.tobytes())


def lying_server(reply: Reply | None, *, token: bytes = TOKEN) -> tuple[tuple[str, int], threading.Thread]:
    """A server that authenticates and then answers one request with reply(), or never."""
    sb = superblock(1)
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as sock:
            row_handshake.accept(sock, token, lambda *_: sb)
            header = sock.recv(24)
            if not header:
                return
            _, count, request_id, _, _ = struct.unpack("<IIQII", header)
            ids = list(struct.unpack(f"<{count}I", sock.recv(4 * count)))
            if reply is None:
                sock.recv(1)  # until the client gives up
                return
            body = reply(sb, ids)
            sock.sendall(struct.pack("<IIQII", 0x50524C53, 0, request_id, count, sb.record_bytes) + body)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return listener.getsockname()[:2], thread


def flip(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]


LIES: dict[str, tuple[Reply | None, str]] = {
    "rows of other ids": (lambda sb, ids: b"".join(record(sb, i + 1) for i in ids), "row 5 is not what it says"),
    "rows in another order": (lambda sb, ids: b"".join(record(sb, i) for i in reversed(ids)), "row 5 is not"),
    "an older epoch": (
        lambda sb, ids: b"".join(record(superblock(1, epoch=9), i) for i in ids),
        "row 5 is not what it says",
    ),
    "another layer": (lambda sb, ids: b"".join(record(superblock(14), i) for i in ids), "row 5 is not"),
    "another table": (
        lambda sb, ids: b"".join(record(superblock(1, table_uuid=uuid.UUID(int=9)), i) for i in ids),
        "row 5 is not",
    ),
    "a flipped bit": (lambda sb, ids: flip(b"".join(record(sb, i) for i in ids), 300), "row 6 is not"),
    "zeros": (lambda sb, ids: bytes(len(ids) * sb.record_bytes), "row 5 is not"),
    "too few bytes": (lambda sb, ids: record(sb, ids[0]), "read failed"),
    "nothing at all": (None, "read failed: Connection timed out"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_server_never_causes_a_wrong_row(lie: str) -> None:
    reply, message = LIES[lie]
    address, thread = lying_server(reply)
    with RowClient(*address, TOKEN, TABLE, 1, timeout_s=0.3) as mine, pytest.raises(SlackTierError, match=message):
        mine.fetch([5, 6])
    thread.join(2)
    assert not thread.is_alive()


def test_a_server_without_the_token_is_found_out() -> None:
    class Denier:
        """Accepts any client, as a server that does not know the token would have to."""

        def run(self, listener: socket.socket) -> None:
            with listener, listener.accept()[0] as sock:
                sock.sendall(row_handshake.MAGIC + bytes(32))
                sock.recv(84)
                sock.sendall(struct.pack("<I", 0) + bytes(4096 + 32))

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=Denier().run, args=(listener,), daemon=True)
    thread.start()
    with pytest.raises(ContractError, match="does not know the token"):
        RowClient(*listener.getsockname()[:2], TOKEN, TABLE, 1, timeout_s=0.5)
    thread.join(2)


def test_something_else_on_the_port_is_named() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        with listener, listener.accept()[0] as sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.2" + b"\r\n" * 20)

    threading.Thread(target=run, daemon=True).start()
    with pytest.raises(ContractError, match=r"not a SlackTier row server: it says b'SSH-2\.0-'"):
        RowClient(*listener.getsockname()[:2], TOKEN, TABLE, 1, timeout_s=0.5)


def test_only_memory_is_served(tmp_path: Path) -> None:
    path = write_region(tmp_path / "layer1", superblock(1), SEEDS[1])
    with pytest.raises(ConfigError, match="expected tier dram"):
        RowServer([SourceSpec(Tier.NVME, (path,))], TOKEN)


def test_a_short_token_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("secret\n")
    with pytest.raises(ConfigError, match="6 bytes, expected at least 16"):
        read_token(path)
    path.write_bytes(TOKEN + b"\n")
    assert read_token(path) == TOKEN
