# SPDX-License-Identifier: Apache-2.0
"""Reads of a raw NVMe device through the kernel's own driver: each fault ends in right bytes or a clear error."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from qmp import Qmp
from tables import SourceRows, slacktier, stage_to_device

from slacktier.errors import DeadlineMissedError, TierUnavailableError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec

SECTORS_PER_PAGE = PAGE_BYTES // 512
DELAY_MS = 100


def lone(spec: SourceSpec, *others: SourceSpec, backend: str = "uring", timeout_s: float = 20.0) -> LookupCore:
    """A core over layer 1 without a cache, so that each lookup reads; replicas in this order."""
    return LookupCore([LayerSetup(1, (spec, *others))], backend=backend, timeout_s=timeout_s)


def row_of_page(page_id: int) -> int:
    return page_id * 15 + 7


@pytest.mark.parametrize("backend", ["uring", "posix"])
def test_100_000_rows_equal_the_source(nvme: SourceSpec, source: dict[int, SourceRows], backend: str) -> None:
    ids = source[1].draw(100_000, seed=1)
    with lone(nvme, backend=backend) as core:
        assert core.backend == backend
        for part in np.split(ids, 10):
            source[1].look_up(core, part)
        assert core.stats()[1]["retries"] == core.stats()[1]["failed_reads"] == 0


def interrupts() -> int:
    """That the NVMe disks raised so far."""
    lines = [line.split() for line in Path("/proc/interrupts").read_text().splitlines() if "nvme" in line]
    return sum(int(field) for line in lines for field in line[1 : 1 + os.sysconf("SC_NPROCESSORS_ONLN")])


@pytest.mark.parametrize("backend", ["uring", "posix"])
def test_completions_are_polled_where_the_disk_has_a_queue_for_it(
    nvme: SourceSpec, source: dict[int, SourceRows], backend: str
) -> None:
    """As the guest's kernel was started: with nvme.poll_queues=1."""
    with lone(nvme, backend=backend) as core:
        assert core.is_polled == (backend == "uring")
        before = interrupts()
        for seed in range(10):
            source[1].look_up(core, source[1].draw(500, seed))
        raised = interrupts() - before
    print(f"{backend}: {raised} interrupts for 5,000 rows")
    assert raised < 50 if backend == "uring" else raised > 500


def test_a_second_staging_of_the_device_writes_nothing(nvme: SourceSpec, checkpoint: Path) -> None:
    def sectors_written() -> int:
        return int(Path("/sys/block/nvme0n1/stat").read_text().split()[6])

    before = sectors_written()
    slacktier("stage", checkpoint, "--layer", 1, "--target", nvme.paths[0])
    assert sectors_written() == before


def test_verify_reads_the_device_whole(nvme: SourceSpec) -> None:
    report = json.loads(slacktier("verify", nvme.paths[0], "--json"))
    assert report["state"] == "complete"


def test_doctor_finds_the_devices(nvme: SourceSpec) -> None:
    """Its exit code says that the demo would not run here: the guest has neither the memory nor the packages."""
    checks = {check["name"]: check for check in json.loads(slacktier("doctor", "--json", exit_code=1))["checks"]}
    assert "nvme0" in checks["nvme devices"]["found"]
    assert checks["io_uring"]["status"] == "ok"
    assert "rxe0" in checks["rdma devices"]["found"]


@pytest.fixture(scope="session")
def sick(checkpoint: Path) -> SourceSpec:
    """The same table on a disk that gets errors and delays."""
    return stage_to_device(checkpoint, "nvme1")


@pytest.fixture
def bad_pages(sick: SourceSpec, qmp: Qmp) -> Iterator[list[int]]:
    """Data pages of the sick disk that cannot be read."""
    pages = [3, 500, 6000]
    qmp.fail_reads("nvme1", [(SUPERBLOCK_PAGES + page_id) * SECTORS_PER_PAGE for page_id in pages])
    yield pages
    qmp.fail_reads("nvme1", [])


@pytest.mark.parametrize("backend", ["uring", "posix"])
def test_bad_sectors_are_an_error_that_names_the_page(
    sick: SourceSpec, bad_pages: list[int], source: dict[int, SourceRows], backend: str
) -> None:
    ids = np.setdiff1d(source[1].draw(2000, seed=2), np.add.outer(np.array(bad_pages) * 15, np.arange(15)).ravel())
    with lone(sick, backend=backend) as core:
        for page_id in bad_pages:
            with pytest.raises(
                TierUnavailableError, match=f"layer 1 page {page_id} from nvme:/dev/nvme1n1: read failed"
            ):
                source[1].look_up(core, np.array([row_of_page(page_id)]))
        stats = core.stats()[1]
        assert stats["failed_reads"] == stats["retries"] == len(bad_pages)
        source[1].look_up(core, ids)  # and the neighbours are whole


def test_bad_sectors_are_read_from_the_second_replica(
    sick: SourceSpec, bad_pages: list[int], nvme: SourceSpec, source: dict[int, SourceRows]
) -> None:
    with lone(sick, nvme) as core:
        source[1].look_up(core, np.array([row_of_page(page_id) for page_id in bad_pages]))
        stats = core.stats()[1]
        assert (stats["failed_reads"], stats["retries"]) == (0, 2 * len(bad_pages))


@pytest.fixture
def slow(sick: SourceSpec) -> Iterator[SourceSpec]:
    """The sick disk behind a device that holds each read back for 100 ms."""
    (device,) = sick.paths
    sectors = int(Path(f"/sys/block/{device.name}/size").read_text())
    table = f"0 {sectors} delay {device} 0 {DELAY_MS}"
    subprocess.run(["dmsetup", "create", "slow", "--noudevrules", "--noudevsync", "--table", table], check=True)
    (name,) = [path.name for path in Path("/sys/block").glob("dm-*") if (path / "dm/name").read_text() == "slow\n"]
    yield SourceSpec(Tier.NVME, (Path("/dev", name),))
    subprocess.run(["dmsetup", "remove", "--retry", "--noudevrules", "--noudevsync", "slow"], check=True)


def test_reads_that_take_100_ms_are_waited_for_and_whole(slow: SourceSpec, source: dict[int, SourceRows]) -> None:
    with lone(slow) as core:
        result = source[1].look_up(core, source[1].draw(300, seed=3))
        assert result.read_us >= DELAY_MS * 1e3
        assert core.stats()[1]["timeouts"] == 0


def test_reads_that_take_longer_than_the_limit_are_late_and_never_a_wrong_row(
    slow: SourceSpec, source: dict[int, SourceRows]
) -> None:
    ids = source[1].draw(50, seed=4)
    with lone(slow, timeout_s=0.04) as core:
        with pytest.raises(DeadlineMissedError, match="did not arrive"):
            source[1].look_up(core, ids)
        assert core.stats()[1]["timeouts"] == 1
        time.sleep(0.5)  # what is late comes back; then the core reads again
        with pytest.raises(DeadlineMissedError, match="did not arrive"):
            source[1].look_up(core, ids)


def test_a_disk_pulled_out_mid_run_costs_no_lookup_with_a_second_replica(
    checkpoint: Path, nvme: SourceSpec, qmp: Qmp, source: dict[int, SourceRows]
) -> None:
    """The last test of this disk: reads of a disk that is gone return 0 bytes, which must be no rows."""
    pulled = stage_to_device(checkpoint, "nvme2")
    with lone(pulled, nvme) as core, lone(pulled) as alone:
        source[1].look_up(alone, source[1].draw(100, seed=5))
        puller = threading.Thread(target=qmp.unplug, args=("nvme2",))
        puller.start()
        lookups = 0
        while puller.is_alive() or core.stats()[1]["retries"] == 0:
            source[1].look_up(core, source[1].draw(200, seed=lookups))
            lookups += 1
        puller.join()
        assert core.stats()[1]["failed_reads"] == 0
        with pytest.raises(TierUnavailableError, match="read failed"):
            source[1].look_up(alone, source[1].draw(100, seed=6))
