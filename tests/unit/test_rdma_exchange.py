# SPDX-License-Identifier: Apache-2.0
"""What node and client tell each other is signed and bounded; everything else on the connection is refused."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_lookup_core import superblock

from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier_native import rdma_exchange, row_handshake
from slacktier_native.rdma import RdmaLink, RdmaSettings, RdmaSpec
from slacktier_native.rdma_exchange import CLIENT, NODE, ClientFacts, End, NodeFacts, PortFacts, RegionFacts

KEY = b"k" * 32
TOKEN = b"0123456789abcdef"
PORT = PortFacts(gid="00" * 16, lid=0, mtu=5, ethernet=True, reads_max=16)
ASKED = ClientFacts(ends=[End(number=17, first_psn=0xABCDEF)], port=PORT)
TOLD = NodeFacts(
    ends=[End(number=18, first_psn=1)], port=PORT, region=RegionFacts(address=1 << 40, byte_count=4096, key=7)
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.settimeout(2)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_messages_arrive_as_they_were_sent(pair: Pair) -> None:
    rdma_exchange.send(pair[0], KEY, CLIENT, ASKED)
    assert rdma_exchange.receive(pair[1], KEY, CLIENT, ClientFacts, 2) == ASKED
    rdma_exchange.send(pair[1], KEY, NODE, TOLD)
    assert rdma_exchange.receive(pair[0], KEY, NODE, NodeFacts, 2) == TOLD


def test_another_key_and_a_reflected_message_are_refused(pair: Pair) -> None:
    rdma_exchange.send(pair[0], b"x" * 32, CLIENT, ASKED)
    with pytest.raises(ContractError, match="not signed"):
        rdma_exchange.receive(pair[1], KEY, CLIENT, ClientFacts, 2)
    rdma_exchange.send(pair[0], KEY, CLIENT, ASKED)
    with pytest.raises(ContractError, match="not signed"):
        rdma_exchange.receive(pair[1], KEY, NODE, ClientFacts, 2)


def signed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body + rdma_exchange._mac(KEY, CLIENT, body)


def changed(**changes: object) -> bytes:
    return signed(json.dumps({**ASKED.model_dump(), **changes}).encode())


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (struct.pack("<I", 1 << 31), "message of 2147483648 bytes, expected at most 65536"),
        (struct.pack("<I", 100) + b"half", "closed after 4 of 100 bytes"),
        (signed(b"{"), "Invalid JSON"),
        (changed(ends=[]), "ends: List should have at least 1 item"),
        (changed(ends=[ASKED.ends[0].model_dump()] * 129), "ends: List should have at most 128 items"),
        (changed(ends=[{"number": 1 << 24, "first_psn": 0}]), "ends.0.number: Input should be less than"),
        (changed(port={**PORT.model_dump(), "mtu": 9}), "port.mtu: Input should be less than or equal to 5"),
        (changed(port={**PORT.model_dump(), "gid": "::1"}), "port.gid: String should match"),
        (changed(more=1), "more: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(pair: Pair, raw: bytes, message: str) -> None:
    pair[0].sendall(raw)
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ContractError, match=message):
        rdma_exchange.receive(pair[1], KEY, CLIENT, ClientFacts, 2)


RDMA = row_handshake.RDMA_MAGIC


def test_both_ends_of_an_opening_share_a_key_that_no_other_opening_has() -> None:
    keys: list[bytes] = []

    def accept(sock: socket.socket) -> None:
        session = row_handshake.accept_session(sock, TOKEN, lambda *_: superblock(1), RDMA, timeout_s=2)
        assert session is not None
        keys.append(session[1])

    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            thread = threading.Thread(target=accept, args=(theirs,))
            thread.start()
            found, key = row_handshake.connect_session(ours, TOKEN, None, 1, "test", RDMA, timeout_s=2)
            thread.join()
            assert found == superblock(1)
            assert keys[-1] == key
    assert keys[0] != keys[1]


def test_a_row_servers_port_is_told_from_a_memory_nodes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(row_handshake.MAGIC + bytes(32))
        with pytest.raises(ContractError, match="not a SlackTier memory node: it says b'SLKROWS1'"):
            row_handshake.connect_session(ours, TOKEN, None, 1, "test", RDMA, timeout_s=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0}, "RDMA threads 0: expected 1 to 16"),
        ({"queue_pairs": 9}, "RDMA queue pairs 9: expected 1 to 8"),
        ({"depth": 48}, "RDMA depth 48: expected a multiple of 32"),
        ({"retry_count": 8}, "RDMA retry count 8: expected 1 to 7"),
        ({"timeout_s": 0.0}, "RDMA timeout of 0.0 s"),
        ({"gid_index": 256}, "RDMA GID index 256"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RdmaSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("host", "port"), [("", 7500), ("node2", 0), ("node2", 70000)])
def test_an_address_that_is_none_is_refused(host: str, port: int) -> None:
    with pytest.raises(ConfigError, match="expected a host and a port"):
        RdmaSpec(host, port, Path("token"), 1)
    assert RdmaSpec("::1", 7500, Path("token"), 1).label == "rdma:[::1]:7500"


def test_a_machine_without_rdma_says_so_and_falls_to_nothing_else(tmp_path: Path) -> None:
    """Whatever else there is: neither with a second replica nor without one does it become another tier."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    for like in (None, superblock(1)):
        with pytest.raises((ConfigError, TierUnavailableError), match=r"RDMA|memory node"):
            RdmaLink(RdmaSpec("127.0.0.1", 1, token, 1), like=like).close()
