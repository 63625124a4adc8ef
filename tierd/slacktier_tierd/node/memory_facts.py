# SPDX-License-Identifier: Apache-2.0
"""What memory a table may take on this machine: what is available, the cgroup's limit, reserved huge pages, memlock."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

HUGE_PAGE_BYTES: Final = 2 << 20
_MEMINFO: Final = Path("/proc/meminfo")
_HUGE: Final = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
_CGROUP: Final = Path("/sys/fs/cgroup")


def available_bytes(*, hugepages: bool) -> int:
    """Bytes that a new table may take: of reserved huge pages, or of what the machine and the cgroup have left."""
    if hugepages:
        return free_huge_pages() * HUGE_PAGE_BYTES
    return min(_machine_bytes(), _cgroup_bytes())


def free_huge_pages() -> int:
    """Reserved 2 MiB pages that nobody uses; 0 where the kernel has none."""
    return int(_HUGE.read_text()) if _HUGE.exists() else 0


def _machine_bytes() -> int:
    for line in _MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _own_cgroups() -> list[tuple[Path, str, str]]:
    """(directory, file of the limit, file of the use) of this process's memory cgroup, in either version."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            found.append((_CGROUP / path.lstrip("/"), "memory.max", "memory.current"))
        elif "memory" in controllers.split(","):
            where = _CGROUP / "memory" / path.lstrip("/")
            found.append((where, "memory.limit_in_bytes", "memory.usage_in_bytes"))
    return found


def _cgroup_bytes() -> int:
    """Room below the tightest limit on the way up; a huge number where there is none."""
    room = 1 << 62
    for directory, limit_name, use_name in _own_cgroups():
        at = directory
        while at.is_relative_to(_CGROUP):
            limit, use = at / limit_name, at / use_name
            if limit.exists() and use.exists() and (text := limit.read_text().strip()) != "max":
                room = min(room, max(0, int(text) - int(use.read_text())))
            at = at.parent
    return room


def memlock_bytes() -> int:
    """RLIMIT_MEMLOCK; a huge number where it is unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return 1 << 62 if soft == resource.RLIM_INFINITY else soft
