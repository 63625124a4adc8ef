# SPDX-License-Identifier: Apache-2.0
"""Is a block device in use on this machine: mounted, swapped to, or part of another device."""

from __future__ import annotations

import os
from pathlib import Path


def device_use(device: int) -> str:
    """How device number `device` or a partition of it is in use, in words; "" where it is free."""
    numbers = {device, *_partitions(device)}
    for number, where in _mounted():
        if number in numbers:
            return f"mounted at {where}"
    for number in numbers:
        holders = sorted(entry.name for entry in _entries(_sysfs(number) / "holders"))
        if holders:
            return f"part of {', '.join(holders)}"
    for path in _swap_paths():
        if _device_number(path) in numbers:
            return "swap space"
    return ""


def _sysfs(device: int) -> Path:
    return Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _partitions(device: int) -> list[int]:
    found = []
    for entry in _entries(_sysfs(device)):
        if (entry / "partition").exists():
            major, minor = (entry / "dev").read_text().split(":")
            found.append(os.makedev(int(major), int(minor)))
    return found


def _mounted() -> list[tuple[int, str]]:
    """(device number, mount point) of every mount in this mount namespace; format: proc(5), mountinfo."""
    mounts = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        major, minor = fields[2].split(":")
        mounts.append((os.makedev(int(major), int(minor)), fields[4]))
        source = fields[fields.index("-") + 2]  # btrfs and others show a device number of their own above
        if source.startswith("/dev/"):
            mounts.append((_device_number(Path(source)), fields[4]))
    return mounts


def _swap_paths() -> list[Path]:
    swaps = Path("/proc/swaps")
    lines = swaps.read_text().splitlines()[1:] if swaps.exists() else []
    return [Path(line.split()[0]) for line in lines]


def _device_number(path: Path) -> int:
    try:
        return path.stat().st_rdev
    except OSError:  # a mount source or swap file of another namespace has no device here
        return -1
