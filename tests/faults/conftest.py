# SPDX-License-Identifier: Apache-2.0
"""What this level needs and makes: root, FUSE, loop devices, network namespaces. What is missing fails, never skips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from pattern_regions import SEEDS, superblock, write_region
from system_tools import require_root, run_tool


@pytest.fixture(scope="session", autouse=True)
def root_user() -> None:
    require_root("faults")


@pytest.fixture
def regions(tmp_path: Path) -> dict[int, Path]:
    """A region of pattern rows per layer id."""
    return {i: write_region(tmp_path / f"layer{i}.region", superblock(i), SEEDS[i]) for i in SEEDS}


@pytest.fixture
def disk(tmp_path: Path, regions: dict[int, Path]) -> Iterator[FaultyDisk]:
    """Layer 1's region on a disk that fails to order."""
    with FaultyDisk(tmp_path / "faulty", regions[1].read_bytes()) as opened:
        yield opened


@pytest.fixture
def loop_of() -> Iterator[Callable[[Path], Path]]:
    """loop_of(path): a read-only block device whose sectors are the file's, detached afterwards."""
    devices: list[str] = []

    def make(path: Path) -> Path:
        devices.append(run_tool("losetup", "--find", "--show", "--read-only", path))
        return Path(devices[-1])

    yield make
    for device in devices:
        run_tool("losetup", "--detach", device)
