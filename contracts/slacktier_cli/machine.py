# SPDX-License-Identifier: Apache-2.0
"""What machine a figure was measured on: processor, cores, kernel, memory, and the disk under a directory."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

MOUNTS = Path("/proc/self/mountinfo")
CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")


def cpu_field(cpuinfo: str, name: str) -> str:
    """The first processor's field of that name in the text of /proc/cpuinfo, or ""."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def meminfo_bytes(meminfo: str) -> dict[str, int]:
    """Each field of /proc/meminfo in bytes; counts, such as HugePages_Total, as they are."""
    fields = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        fields[name] = int(number) * (1024 if unit == "kB" else 1)
    return fields


def _unescape(path: str) -> str:
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def mount_of(directory: Path, mountinfo: str) -> tuple[str, str]:
    """(filesystem type, source) of the mount that holds directory, from the text of /proc/self/mountinfo.

    Of two mounts on one path the later one is in force; "unknown" where none holds it, as in a chroot.
    """
    found = ("unknown", "unknown")
    longest = -1
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        mount_point = Path(_unescape(head.split()[4]))
        if directory.is_relative_to(mount_point) and len(mount_point.parts) >= longest:
            longest = len(mount_point.parts)
            filesystem, source, *_ = tail.split()
            found = (filesystem, _unescape(source))
    return found


def describe_machine(directory: Path) -> dict[str, Any]:
    """What a figure needs beside it, ready for JSON; directory is where the measured file lies."""
    filesystem, device = mount_of(directory.resolve(), MOUNTS.read_text())
    return {
        "cpu": cpu_field(CPUINFO.read_text(), "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "memory_bytes": meminfo_bytes(MEMINFO.read_text())["MemTotal"],
        "filesystem": filesystem,
        "disk": device,
    }


def machine_line(machine: dict[str, Any]) -> str:
    """The description in one line for people."""
    gib = machine["memory_bytes"] / 2**30
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {gib:.0f} GiB, Linux {machine['kernel']}, "
        f"{machine['filesystem']} on {machine['disk']}"
    )
