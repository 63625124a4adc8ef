# SPDX-License-Identifier: Apache-2.0
"""Faults that a comparable store was seen to let through, each held here: a flipped byte, half a file, an id outside
the table, more rows than cache, handles that leak under threads, O_DIRECT, a server that anyone may ask anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from lookups import look_up, nvme, open_core, run_steps, until
from nodes import TOKEN
from pattern_regions import ROWS

from slacktier.errors import ConfigError, ContractError, TierUnavailableError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES
from slacktier.tiers import Tier
from slacktier_native import row_handshake
from slacktier_native.rows import RowClient, RowServer
from slacktier_native.sources import SourceSpec

TABLE = uuid.UUID(int=7)
BACKENDS = pytest.mark.parametrize("backend", ["uring", "posix"])


@pytest.fixture
def server(regions: dict[int, Path]) -> Iterator[RowServer]:
    with RowServer([SourceSpec(Tier.DRAM, (regions[1],))], TOKEN, timeout_s=0.5) as opened:
        yield opened


@pytest.mark.parametrize("tier", [Tier.NVME, Tier.DRAM])
def test_a_flipped_byte_is_an_error_and_never_a_row(regions: dict[int, Path], tier: Tier) -> None:
    with regions[1].open("r+b") as file:
        file.seek((SUPERBLOCK_PAGES + 3) * PAGE_BYTES + 16 + 272 * 5 + 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x20]))
    with open_core(SourceSpec(tier, (regions[1],))) as core:
        with pytest.raises(ContractError, match=r"layer 1 page 3 .* row 50: row checksum does not match"):
            look_up(core, np.array([50]))
        look_up(core, np.array([49, 51]))
        assert core.stats()[1]["bad_records"] > 0


@pytest.mark.parametrize("tier", [Tier.NVME, Tier.DRAM])
def test_a_file_cut_in_half_does_not_open(regions: dict[int, Path], tier: Tier) -> None:
    half = regions[1].stat().st_size // 2
    os.truncate(regions[1], half)
    with pytest.raises(ContractError, match=rf"{regions[1]}.*{half} bytes"):
        open_core(SourceSpec(tier, (regions[1],)))


@pytest.mark.parametrize("row_id", [ROWS, 2**31, 2**32, 2**63 - 1, -2, -(2**63)])
def test_an_id_outside_the_table_is_an_ordinary_exception_and_starts_nothing(
    regions: dict[int, Path], row_id: int
) -> None:
    with open_core(nvme(regions[1])) as core:
        raised: Exception | None = None
        try:
            look_up(core, np.array([5, row_id]))
        except Exception as exc:
            raised = exc
        assert isinstance(raised, ConfigError)
        assert f"row id {row_id}, expected -1 to {ROWS - 1}" in str(raised)
        assert core.stats()[1]["pages"] == 0
        look_up(core, np.array([5]))


@BACKENDS
@pytest.mark.parametrize("cache_rows", [0, 1, 16, 79])
def test_more_rows_than_the_cache_holds_are_all_served(regions: dict[int, Path], backend: str, cache_rows: int) -> None:
    with open_core(nvme(regions[1]), cache_rows=cache_rows, backend=backend) as core:
        outcome = run_steps(core, 20, lookups=3000)
        assert (outcome.answered, outcome.errors) == (20, [])
        assert core.stats()[1]["spills"] > 0 or cache_rows == 0


def count(what: str) -> int:
    return sum(1 for _ in Path("/proc/self", what).iterdir())


@BACKENDS
def test_eight_threads_that_open_read_and_close_leave_no_handle_behind(regions: dict[int, Path], backend: str) -> None:
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            for turn in range(5):
                with open_core(nvme(regions[1]), backend=backend) as core:
                    assert run_steps(core, 3, seed=8 * turn + seed).errors == []
        except BaseException as exc:
            failures.append(exc)

    run(0)  # what is opened once per process is open now
    before = count("fd"), count("task")
    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count("fd") == before[0]
    until(lambda: count("task") <= before[1])  # a joined thread may take a moment to leave the list


@BACKENDS
def test_regions_are_read_past_the_page_cache(regions: dict[int, Path], backend: str) -> None:
    with open_core(nvme(regions[1]), backend=backend) as core:
        flags = [_open_flags(fd) for fd in Path("/proc/self/fd").iterdir() if _target(fd) == str(regions[1])]
        assert flags
        assert all(flag & os.O_DIRECT for flag in flags)
        assert run_steps(core, 5).errors == []


def _target(fd: Path) -> str:
    with contextlib.suppress(OSError):  # the descriptor of the listing itself
        return str(fd.readlink())
    return ""


def _open_flags(fd: Path) -> int:
    return fcntl.fcntl(int(fd.name), fcntl.F_GETFL)


def test_nobody_without_the_token_gets_a_row_or_an_address(server: RowServer) -> None:
    with pytest.raises(TierUnavailableError, match="wrong token"):
        RowClient(*server.address, b"x" * 32, TABLE, 1)
    with socket.create_connection(server.address, timeout=2) as sock:
        hello = sock.recv(40, socket.MSG_WAITALL)
        assert hello.startswith(row_handshake.MAGIC)
        sock.sendall(struct.pack("<IIQIII", 0x51524C53, 1, 1, 0, 0, 7).ljust(84, b"\0"))  # straight to a request
        assert sock.recv(4096) == struct.pack("<I", 1)  # "wrong token", and not a byte more
    server.close()
    assert server.stats()["rows"] == 0
    assert server.stats()["refused"] == 2


@pytest.mark.parametrize("count", [8193, 2**31, 2**32 - 1])
def test_a_request_without_bounds_is_refused_before_its_ids_are_read(server: RowServer, count: int) -> None:
    with socket.create_connection(server.address, timeout=2) as sock:
        row_handshake.connect(sock, TOKEN, TABLE, 1, "test")
        sock.sendall(struct.pack("<IIQII", 0x51524C53, count, 1, 0, 0))
        reply = sock.recv(4096)
        assert struct.unpack("<IIQII", reply)[1] == 7  # E2BIG
        assert sock.recv(1) == b""
    with RowClient(*server.address, TOKEN, TABLE, 1) as good:
        assert good.fetch([1, 2]).shape == (2, 264)
