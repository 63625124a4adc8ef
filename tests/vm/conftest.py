# SPDX-License-Identifier: Apache-2.0
"""What each test in the guest gets: a kernel log that is read after it, disks, faults in them over QMP, tables."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from qmp import Qmp, open_port
from rdma_support import TOKEN, TOKEN_FILE
from tables import SourceRows, read_source, slacktier, stage_to_device

from slacktier_native.core import SourceSpec

# What a kernel says about its own faults; failing disks and links are what some tests are about.
KERNEL_FAULT: Final = re.compile(
    r"BUG:|Oops|WARNING: CPU|general protection|Call Trace|hung task|blocked for more than|use-after-free|rcu.*stall"
)


@pytest.fixture(scope="session", autouse=True)
def in_guest() -> None:
    """On any other machine these tests would test its disks."""
    if "SLACKTIER_IN_GUEST" not in os.environ:
        pytest.fail("tests/vm runs in a guest: run `make test-vm`", pytrace=False)


@pytest.fixture(autouse=True)
def kernel_log() -> Iterator[None]:
    """Fails a test that made the kernel complain of itself; the lines of each test are printed with its failure."""
    subprocess.run(["dmesg", "--clear"], check=True)
    yield
    log = subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
    print(log)
    assert not KERNEL_FAULT.search(log), f"the kernel complained:\n{log}"


@pytest.fixture(scope="session")
def qmp(in_guest: None) -> Iterator[Qmp]:
    """The emulator that this guest runs in."""
    with open_port() as port:
        yield port


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, in_guest: None) -> Path:
    """Two layers of more than 100,000 rows each."""
    path = tmp_path_factory.mktemp("checkpoint") / "v41"
    slacktier("make-checkpoint", path, "--rows", 110_000, "--layer", 1, "--layer", 14)
    return path


@pytest.fixture(scope="session")
def source(checkpoint: Path) -> dict[int, SourceRows]:
    """What every row of both layers must be: the bytes of the checkpoint's files."""
    return read_source(checkpoint)


@pytest.fixture(scope="session")
def nvme(checkpoint: Path) -> SourceSpec:
    """Layer 1 on the disk that stays whole."""
    return stage_to_device(checkpoint, "nvme0")


@pytest.fixture(scope="session")
def regions(nvme: SourceSpec, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Layer 1 on the NVMe disk, from where nodes load it, and layer 14 in a file."""
    path = tmp_path_factory.mktemp("regions") / "layer14"
    slacktier("stage", checkpoint, "--layer", 14, "--target", path)
    return {1: nvme.paths[0], 14: path}


@pytest.fixture(scope="session", autouse=True)
def token_file(in_guest: None) -> None:
    TOKEN_FILE.write_bytes(TOKEN)
