# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured on, as far as it explains the figure. Nothing here names the machine or its user."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

CPUINFO: Final = Path("/proc/cpuinfo")
MEMINFO: Final = Path("/proc/meminfo")
_MOUNTS: Final = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores are those this process may use; the disk is the one below the directory that was asked about."""

    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    filesystem: str
    disk: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        gib = self.memory_bytes / 2**30
        return f"{self.cpu}, {self.cores} cores, {gib:.0f} GiB, {self.kernel}, {self.filesystem} on {self.disk}"


def describe_machine(directory: Path) -> Machine:
    """This machine, and the file system and disk below an existing directory."""
    return Machine(
        cpu=proc_field(CPUINFO, "model name") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=_kib(proc_field(MEMINFO, "MemTotal")),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        filesystem=filesystem_of(directory),
        disk=disk_of(directory),
    )


def free_disk_bytes(directory: Path) -> int:
    """Bytes that this user may still write below the directory."""
    return shutil.disk_usage(directory).free


def available_memory_bytes() -> int:
    """What the kernel thinks can be used without swapping; 0 if it does not say."""
    return _kib(proc_field(MEMINFO, "MemAvailable"))


def proc_field(path: Path, name: str) -> str:
    """The first `name: value` of a file such as /proc/cpuinfo, or ""."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name) and ":" in line), "")


def _kib(text: str) -> int:
    number = text.split(" ", 1)[0]
    return int(number) << 10 if number.isdigit() else 0


def filesystem_of(directory: Path) -> str:
    """Type of the mount with the longest path that holds the directory."""
    here = directory.resolve()
    best, found = -1, "unknown"
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        parts = line.split(" ")
        if len(parts) > 2 and here.is_relative_to(parts[1]) and len(parts[1]) >= best:
            best, found = len(parts[1]), parts[2]
    return found


def disk_of(directory: Path) -> str:
    """Name and kind of the block device, or "none" for a file system without one."""
    device = directory.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not link.exists():
        return "none (no block device)"
    resolved = link.resolve()
    queue = next((path / "queue" for path in (resolved, resolved.parent) if (path / "queue").is_dir()), None)
    if queue is None:
        return resolved.name
    is_spinning = (queue / "rotational").read_text(encoding="ascii").strip() == "1"
    return f"{resolved.name} ({'rotational' if is_spinning else 'not rotational'})"
