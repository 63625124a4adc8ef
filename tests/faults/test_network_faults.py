# SPDX-License-Identifier: Apache-2.0
"""Memory nodes that die, fall silent or lie: with a second replica no lookup fails; without, an error in time.

The node is a process on loopback, or one in a network namespace whose link can be cut. Its timeout is 0.5 s here (2 s
by default), so that is what a lookup may lose once when a node falls silent.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from lookups import Outcome, look_up, nvme, open_core, run_steps, until
from nodes import TOKEN, Network, Node
from pattern_regions import superblock, write_region

from slacktier.errors import SlackTierError, TierUnavailableError
from slacktier_native import row_handshake
from slacktier_native.core import LookupCore, RowsSpec

TIMEOUT_S = 0.5
LOST_AT_MOST_S = 2.5  # a timeout, a last chance, and a busy machine
STEPS, AT = 40, 10  # the fault comes before step AT


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_bytes(TOKEN)
    return path


@pytest.fixture
def node(token_file: Path, regions: dict[int, Path]) -> Iterator[Node]:
    with Node(token_file, regions[1]) as started:
        yield started


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.fixture
def far_node(token_file: Path, regions: dict[int, Path], network: Network) -> Iterator[Node]:
    with Node(token_file, regions[1], host=network.address, namespace=network.namespace) as started:
        yield started


def run_through(core: LookupCore, fault: Callable[[], None]) -> Outcome:
    return run_steps(core, STEPS, lookups=80, before=lambda step: fault() if step == AT else None)


def check_served(core: LookupCore, spec: RowsSpec, outcome: Outcome) -> None:
    """No lookup failed, the link is known to be down and what it lost is counted."""
    assert (outcome.answered, outcome.errors) == (STEPS, [])
    assert outcome.longest_s < LOST_AT_MOST_S
    until(lambda: core.links()[spec.label] != "")
    stats = core.stats()[1]
    assert stats["failed_steps"] == stats["timeouts"] == 0


def check_failed(core: LookupCore, spec: RowsSpec, outcome: Outcome) -> None:
    """Steps before the fault were answered; after it each fails, named, in bounded time."""
    assert outcome.answered >= AT
    assert outcome.errors
    assert outcome.longest_s < LOST_AT_MOST_S
    assert all(isinstance(error, TierUnavailableError) and spec.label in str(error) for error in outcome.errors)
    assert core.stats()[1]["failed_steps"] == len(outcome.errors)


@pytest.mark.parametrize("fault", ["kill", "freeze"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_node_that_dies_or_falls_silent_while_steps_run(
    node: Node, regions: dict[int, Path], fault: str, replicas: int
) -> None:
    spec = node.spec(TIMEOUT_S)
    with open_core(*(spec, nvme(regions[1]))[:replicas], cache_rows=0) as core:
        outcome = run_through(core, getattr(node, fault))
        (check_served if replicas == 2 else check_failed)(core, spec, outcome)


@pytest.mark.parametrize("fault", ["link_down", "swallow"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_link_that_is_cut_or_swallows_answers_while_steps_run(
    far_node: Node, network: Network, regions: dict[int, Path], fault: str, replicas: int
) -> None:
    spec = far_node.spec(TIMEOUT_S)
    with open_core(*(spec, nvme(regions[1]))[:replicas], cache_rows=0) as core:
        outcome = run_through(core, getattr(network, fault))
        (check_served if replicas == 2 else check_failed)(core, spec, outcome)


def test_two_nodes_of_which_one_dies(token_file: Path, regions: dict[int, Path]) -> None:
    with Node(token_file, regions[1]) as first, Node(token_file, regions[1]) as second:
        specs = first.spec(TIMEOUT_S), second.spec(TIMEOUT_S)
        with open_core(*specs, cache_rows=0) as core:
            outcome = run_through(core, first.kill)
            check_served(core, specs[0], outcome)
            assert core.delivered()[1][specs[1].label] > 0


def test_a_node_that_comes_back_is_used_again(node: Node, token_file: Path, regions: dict[int, Path]) -> None:
    spec = node.spec(TIMEOUT_S)
    with open_core(spec, nvme(regions[1]), cache_rows=0) as core:
        node.kill()
        assert run_steps(core, 5).errors == []
        with Node(token_file, regions[1], port=node.port):
            until(lambda: core.links()[spec.label] == "")
            before = core.delivered()[1][spec.label]
            assert run_steps(core, 5).errors == []
            assert core.delivered()[1][spec.label] > before


@pytest.mark.parametrize(("cut", "mend"), [("link_down", "link_up"), ("swallow", "deliver")])
def test_a_lone_node_behind_a_link_that_is_mended_serves_again(
    far_node: Node, network: Network, cut: str, mend: str
) -> None:
    spec = far_node.spec(TIMEOUT_S)
    with open_core(spec, cache_rows=0) as core:
        assert run_steps(core, 3).errors == []
        getattr(network, cut)()
        assert run_steps(core, 2).answered == 0
        getattr(network, mend)()
        until(lambda: core.links()[spec.label] == "", 10)
        assert run_steps(core, 5).errors == []


def test_a_node_restaged_under_another_epoch_or_with_other_rows_never_gives_a_wrong_row(
    node: Node, token_file: Path, regions: dict[int, Path], tmp_path: Path
) -> None:
    other = write_region(tmp_path / "other", superblock(1, source_digest=b"\7" * 32), 5)
    spec = node.spec(TIMEOUT_S)
    with open_core(spec, nvme(regions[1]), cache_rows=0) as core:
        assert run_steps(core, 2).errors == []
        node.kill()
        with Node(token_file, other, port=node.port):
            until(lambda: "serves other rows" in core.links()[spec.label])
            assert run_steps(core, 5).errors == []


# ---- servers that know the token and misbehave after the handshake ----


def garbage(sock: socket.socket, request_id: int, count: int) -> None:
    sock.sendall(b"\xa5" * 4096)


def too_many_records(sock: socket.socket, request_id: int, count: int) -> None:
    sock.sendall(struct.pack("<IIQII", 0x50524C53, 0, request_id, count + 1, 272) + bytes(272 * (count + 1)))


def another_request(sock: socket.socket, request_id: int, count: int) -> None:
    sock.sendall(struct.pack("<IIQII", 0x50524C53, 0, request_id + 1, count, 272) + bytes(272 * count))


def endless(sock: socket.socket, request_id: int, count: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            sock.sendall(bytes(1 << 16))


def slow_loris(sock: socket.socket, request_id: int, count: int) -> None:
    """A byte now and then: never silent for as long as the timeout, never done."""
    with contextlib.suppress(OSError):
        for byte in struct.pack("<IIQII", 0x50524C53, 0, request_id, count, 272) + bytes(272 * count):
            sock.sendall(bytes([byte]))
            time.sleep(0.05)


def half_a_record(sock: socket.socket, request_id: int, count: int) -> None:
    sock.sendall(struct.pack("<IIQII", 0x50524C53, 0, request_id, count, 272) + bytes(100))


Answer = Callable[[socket.socket, int, int], None]


@contextlib.contextmanager
def misbehaving(answer: Answer) -> Iterator[int]:
    """The port of a server that authenticates every peer and answers each one's first request like that."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, SlackTierError):
            sock.settimeout(5)
            row_handshake.accept(sock, TOKEN, lambda *_: superblock(1))
            header = sock.recv(24, socket.MSG_WAITALL)
            if len(header) == 24:
                _, count, request_id, _, _ = struct.unpack("<IIQII", header)
                sock.recv(4 * count, socket.MSG_WAITALL)
                answer(sock, request_id, count)

    def run() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


ANSWERS = [garbage, too_many_records, another_request, endless, slow_loris, half_a_record]


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: answer.__name__)
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_server_that_breaks_the_protocol(
    token_file: Path, regions: dict[int, Path], answer: Answer, replicas: int
) -> None:
    with misbehaving(answer) as port:
        spec = RowsSpec("127.0.0.1", port, token_file, 1, timeout_s=TIMEOUT_S)
        with open_core(*(spec, nvme(regions[1]))[:replicas], cache_rows=0) as core:
            outcome = run_steps(core, 3)
            assert outcome.longest_s < LOST_AT_MOST_S
            assert outcome.answered == (3 if replicas == 2 else 0)
            assert core.delivered()[1][spec.label] == 0
            assert core.stats()[1]["read_errors"] > 0


def test_a_port_that_listens_and_never_answers_is_an_error_at_the_start(token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spec = RowsSpec("127.0.0.1", listener.getsockname()[1], token_file, 1, timeout_s=TIMEOUT_S)
        start = time.monotonic()
        with pytest.raises(TierUnavailableError, match=f"{spec.port}.*connect failed"):
            open_core(spec)
        assert time.monotonic() - start < LOST_AT_MOST_S


def test_rows_cached_before_a_node_died_are_still_served(node: Node) -> None:
    with open_core(node.spec(TIMEOUT_S), cache_rows=2000) as core:
        ids = np.arange(500)
        look_up(core, ids)
        node.kill()
        look_up(core, ids)
        with pytest.raises(TierUnavailableError):
            look_up(core, np.arange(2000, 2100))
        look_up(core, ids)
