# SPDX-License-Identifier: Apache-2.0
"""What this level needs and makes: root, FUSE, loop devices, network namespaces. What is missing fails, never skips."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from pattern_regions import SEEDS, superblock, write_region


@pytest.fixture(scope="session", autouse=True)
def root_user() -> None:
    """This level was asked for; without root it would test nothing."""
    if os.geteuid() != 0:
        pytest.fail("tests/faults needs root: run `make test-faults` as root or with sudo", pytrace=False)


def run_tool(*command: object) -> str:
    """stdout of a system tool; fails the test naming the tool or its complaint."""
    if shutil.which(str(command[0])) is None:
        pytest.fail(f"tests/faults needs {command[0]}: install util-linux and iproute2", pytrace=False)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {done.stderr.strip()}", pytrace=False)
    return done.stdout.strip()


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
