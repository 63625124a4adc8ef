# SPDX-License-Identifier: Apache-2.0
"""Disks that fail: with a second replica no lookup fails; without, a clear error in bounded time. Never a wrong row.

The disk is a file or a block device whose every read the test answers (faulty_disk.py), under io_uring and preadv.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from faulty_disk import FaultyDisk, OnRead, failing, late, sound
from lookups import look_up, nvme, open_core, run_steps, until
from pattern_regions import ROWS, superblock, write_region

from slacktier.errors import ContractError, DeadlineMissedError, SlackTierError, TierUnavailableError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES, encode_superblock
from slacktier_native.core import LookupCore

BACKENDS = pytest.mark.parametrize("backend", ["uring", "posix"])
BAD_PAGES = {0, 7, 100, 199}  # of 200; rows 0-14, 105-119, 1500-1514, 2985-2999
BAD_ROW, GOOD_ROWS = 107, np.arange(15, 105)
DEADLINE_S = 5.0


def on_pages(change: Callable[[bytes, int], bytes]) -> OnRead:
    """change(page, page id) on reads of the bad pages; other reads are sound."""

    def on_read(offset: int, data: bytes) -> bytes:
        page_id = offset // PAGE_BYTES - SUPERBLOCK_PAGES
        return change(data, page_id) if page_id in BAD_PAGES else data

    return on_read


def raising(code: int) -> OnRead:
    return failing(code, BAD_PAGES, PAGE_BYTES, SUPERBLOCK_PAGES)


def short_by(byte_count: int) -> OnRead:
    return on_pages(lambda page, _: page[:byte_count])


def flipped(page: bytes, page_id: int) -> bytes:
    at = 16 + 272 * (BAD_ROW % 15) + 77
    return page[:at] + bytes([page[at] ^ 0x10]) + page[at + 1 :]


def torn(page: bytes, page_id: int) -> bytes:
    return page[:512] + bytes(PAGE_BYTES - 512)


FAULTS: dict[str, tuple[OnRead, type[SlackTierError], str]] = {
    "EIO": (raising(errno.EIO), TierUnavailableError, "read failed: Input/output error"),
    "ENODATA": (raising(errno.ENODATA), TierUnavailableError, "read failed: No data available"),
    "ENXIO": (raising(errno.ENXIO), TierUnavailableError, "read failed: No such device or address"),
    "a short read": (short_by(2048), TierUnavailableError, "read failed: 2048 bytes, expected 4096"),
    "one byte short": (short_by(4095), TierUnavailableError, "read failed: 4095 bytes, expected 4096"),
    "no bytes": (short_by(0), TierUnavailableError, "read failed: 0 bytes, expected 4096"),
    "a flipped bit": (on_pages(flipped), ContractError, "row 107: row checksum does not match"),
    "a torn page": (on_pages(torn), ContractError, "row 107"),
    "zeros": (on_pages(lambda page, _: bytes(PAGE_BYTES)), ContractError, "page 7 from"),
    "garbage": (on_pages(lambda page, _: os.urandom(PAGE_BYTES)), ContractError, "page 7 from"),
}


@BACKENDS
@pytest.mark.parametrize("fault", FAULTS)
def test_bad_sectors_are_an_error_that_names_them_and_the_rest_is_served(
    disk: FaultyDisk, backend: str, fault: str
) -> None:
    on_read, error, message = FAULTS[fault]
    with open_core(nvme(disk.path), backend=backend) as core:
        assert core.backend == backend
        disk.on_read = on_read
        start = time.monotonic()
        with pytest.raises(error, match=message) as caught:
            look_up(core, np.array([BAD_ROW, 20]))
        assert "page 7 from nvme:" in str(caught.value)
        assert time.monotonic() - start < DEADLINE_S
        look_up(core, GOOD_ROWS)
        disk.on_read = sound
        look_up(core, np.array([BAD_ROW, 20]))
        stats = core.stats()[1]
        assert (stats["failed_steps"], stats["failed_reads"], stats["retries"]) == (1, 1, 1)
        assert stats["bad_records" if error is ContractError else "read_errors"] == 2


@BACKENDS
@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_second_replica_no_lookup_notices_bad_sectors(
    disk: FaultyDisk, regions: dict[int, Path], backend: str, fault: str
) -> None:
    disk.on_read = FAULTS[fault][0]
    with open_core(nvme(disk.path), nvme(regions[1]), backend=backend) as core:
        outcome = run_steps(core, 20)
        assert (outcome.answered, outcome.errors) == (20, [])
        stats = core.stats()[1]
        assert stats["failed_reads"] == 0
        assert stats["retries"] > 0
        assert stats["fallback_rows"] > 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA])
def test_bad_sectors_of_a_block_device(
    disk: FaultyDisk, loop_of: Callable[[Path], Path], regions: dict[int, Path], code: int
) -> None:
    device = loop_of(disk.path)
    with open_core(nvme(device)) as core:
        disk.on_read = raising(code)
        with pytest.raises(TierUnavailableError, match=rf"page 7 from nvme:{device}: read failed: {os.strerror(code)}"):
            look_up(core, np.array([BAD_ROW]))
        look_up(core, GOOD_ROWS)
        core.set_sources(0, [nvme(device), nvme(regions[1])])
        outcome = run_steps(core, 10)
        assert (outcome.answered, outcome.errors) == (10, [])


@BACKENDS
def test_reads_that_take_100_ms_more_are_waited_for(disk: FaultyDisk, backend: str) -> None:
    with open_core(nvme(disk.path), backend=backend) as core:
        disk.on_read = late(0.1)
        ids = np.arange(0, ROWS, 400)
        core.begin([ids])
        result = core.wait(0)
        core.end()
        assert 100_000 < result.read_us < 2_000_000
        look_up(core, ids)
        assert core.stats()[1]["failed_steps"] == core.stats()[1]["timeouts"] == 0


@BACKENDS
def test_a_missed_deadline_is_an_error_and_the_late_rows_land_nowhere(disk: FaultyDisk, backend: str) -> None:
    with open_core(nvme(disk.path), backend=backend, timeout_s=0.3) as core:
        look_up(core, np.arange(40, 100))  # fills slots that a late read could hit
        disk.on_read = late(1.0)
        start = time.monotonic()
        with pytest.raises(DeadlineMissedError, match=r"layer 1: rows did not arrive .* within 0\.3 s"):
            look_up(core, np.arange(0, ROWS, 300))
        assert time.monotonic() - start < 0.9
        with pytest.raises(TierUnavailableError, match="still in flight"):
            core.begin([np.array([1])])
        disk.on_read = sound
        until(lambda: _begins(core))
        look_up(core, np.arange(40, 100))
        outcome = run_steps(core, 10, lookups=30)
        assert outcome.errors == []
        assert core.stats()[1]["timeouts"] == 1


def _begins(core: LookupCore) -> bool:
    try:
        look_up(core, np.array([2000]))
    except TierUnavailableError:
        return False
    return True


@BACKENDS
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_disk_that_is_pulled_out_while_steps_run(
    disk: FaultyDisk, regions: dict[int, Path], backend: str, replicas: int
) -> None:
    sources = (nvme(disk.path), nvme(regions[1]))[:replicas]
    with open_core(*sources, backend=backend, cache_rows=0) as core:
        disk.on_read = late(0.002)  # so that some reads are in flight
        puller = threading.Timer(0.1, disk.unplug)
        puller.start()
        outcome = run_steps(core, 30, lookups=60, before=lambda step: puller.join() if step == 20 else None)
        assert outcome.longest_s < DEADLINE_S
        if replicas == 2:
            assert (outcome.answered, outcome.errors) == (30, [])
            assert core.stats()[1]["fallback_rows"] > 0
        else:
            assert len(outcome.errors) >= 10
            assert all("read failed" in str(error) for error in outcome.errors)
            assert core.stats()[1]["failed_steps"] == len(outcome.errors)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_file_cut_in_half_while_steps_run(tmp_path: Path, regions: dict[int, Path], replicas: int) -> None:
    path = tmp_path / "cut.region"
    path.write_bytes(regions[1].read_bytes())
    with open_core(*(nvme(path), nvme(regions[1]))[:replicas]) as core:
        run_steps(core, 1)
        os.truncate(path, path.stat().st_size // 2)
        if replicas == 2:
            assert run_steps(core, 10).errors == []
            return
        with pytest.raises(TierUnavailableError, match="read failed: 0 bytes, expected 4096"):
            look_up(core, np.array([ROWS - 1]))
        core.drop_cache(0)
        look_up(core, np.arange(1000))


def other_region(tmp_path: Path, kind: str) -> bytes:
    """What a disk would give that holds something else: the layout fits, the rows are not the layer's."""
    changed = {
        "another layer": superblock(14),
        "an older epoch": superblock(1, epoch=9),
        "another table": superblock(1, table_uuid=uuid.UUID(int=8)),
    }[kind]
    return write_region(tmp_path / "other", changed, 999).read_bytes()


@BACKENDS
@pytest.mark.parametrize("kind", ["another layer", "an older epoch", "another table"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_disk_that_was_swapped_behind_an_open_region(
    disk: FaultyDisk, regions: dict[int, Path], tmp_path: Path, backend: str, kind: str, replicas: int
) -> None:
    other = other_region(tmp_path, kind)
    with open_core(*(nvme(disk.path), nvme(regions[1]))[:replicas], backend=backend) as core:
        disk.on_read = lambda offset, data: other[offset : offset + len(data)]
        outcome = run_steps(core, 10)
        if replicas == 2:
            assert outcome.errors == []
            assert core.stats()[1]["fallback_rows"] > 0
        else:
            assert outcome.answered == 0
            assert all(isinstance(error, ContractError) for error in outcome.errors)
        assert core.stats()[1]["bad_records"] > 0


def test_two_regions_swapped_before_they_are_opened_are_refused_by_name(regions: dict[int, Path]) -> None:
    with pytest.raises(SlackTierError, match=r"layer14\.region: holds layer 14, expected layer 1"):
        open_core(nvme(regions[14]))


@BACKENDS
def test_pages_of_two_places_exchanged_are_found(disk: FaultyDisk, regions: dict[int, Path], backend: str) -> None:
    content = regions[1].read_bytes()

    def exchanged(offset: int, data: bytes) -> bytes:
        page = offset // PAGE_BYTES - SUPERBLOCK_PAGES
        at = offset if page < 0 else (SUPERBLOCK_PAGES + (page ^ 1)) * PAGE_BYTES
        return content[at : at + len(data)]

    with open_core(nvme(disk.path), backend=backend) as core:
        disk.on_read = exchanged
        outcome = run_steps(core, 5)
        assert outcome.answered == 0
        assert all("page header" in str(error) for error in outcome.errors)


def test_stripes_of_which_one_fails(tmp_path: Path, regions: dict[int, Path]) -> None:
    striped = [superblock(1, stripe_count=2, stripe_index=i) for i in range(2)]
    whole = regions[1].read_bytes()
    paths = []
    for index, sb in enumerate(striped):
        pages = b"".join(
            whole[(SUPERBLOCK_PAGES + page) * PAGE_BYTES : (SUPERBLOCK_PAGES + page + 1) * PAGE_BYTES]
            for page in range(index, sb.page_count, 2)
        )
        paths.append(tmp_path / f"stripe{index}")
        paths[-1].write_bytes(encode_superblock(sb) * 2 + pages)
    with FaultyDisk(tmp_path / "stripes", paths[1].read_bytes()) as second:
        stripes = nvme(paths[0], second.path)
        with open_core(stripes) as core:
            assert run_steps(core, 3).errors == []
            second.on_read = failing(errno.EIO, set(range(100)), PAGE_BYTES, SUPERBLOCK_PAGES)
            with pytest.raises(TierUnavailableError, match="page 151 from"):
                look_up(core, np.array([151 * 15]))
            core.drop_cache(0)
            look_up(core, np.arange(30) % 15 + 150 * 15)
            core.set_sources(0, [stripes, nvme(regions[1])])
            assert run_steps(core, 5).errors == []
