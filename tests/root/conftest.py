# SPDX-License-Identifier: Apache-2.0
"""What this level needs and makes: root, loop devices, small file systems. A missing one fails, it does not skip."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from system_tools import require_root, run_tool


@pytest.fixture(scope="session", autouse=True)
def root_user() -> None:
    require_root("root")


@pytest.fixture
def make_loop(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """make_loop(byte_count, sector_bytes=512): a block device backed by a file, detached afterwards.

    read_only, content  whether it may be written, and the first bytes that are on it
    """
    devices: list[Path] = []

    def make(byte_count: int, sector_bytes: int = 512, *, read_only: bool = False, content: bytes = b"") -> Path:
        backing = tmp_path / f"disk{len(devices)}.img"
        with backing.open("wb") as file:
            file.write(content)
            file.truncate(byte_count)
        access = ["--read-only"] if read_only else []
        found = run_tool("losetup", "--find", "--show", "--sector-size", sector_bytes, *access, backing)
        devices.append(Path(found))
        return devices[-1]

    yield make
    for device in devices:
        run_tool("losetup", "--detach", device)


@pytest.fixture
def make_disk(tmp_path: Path, make_loop: Callable[..., Path]) -> Iterator[Callable[..., Path]]:
    """make_disk(kind, byte_count): a mounted file system of its own: ext4 on a loop device, tmpfs or ramfs."""
    mounts: list[Path] = []

    def make(kind: str, byte_count: int) -> Path:
        mount = tmp_path / f"mount{len(mounts)}"
        mount.mkdir()
        if kind == "ext4":
            device = make_loop(byte_count)
            run_tool("mkfs.ext4", "-q", "-m", 0, device)
            run_tool("mount", device, mount)
        else:
            run_tool("mount", "-t", kind, "-o", f"size={byte_count}", kind, mount)
        mounts.append(mount)
        return mount

    yield make
    for mount in mounts:
        run_tool("umount", mount)
