# SPDX-License-Identifier: Apache-2.0
"""What a memory node needs before it takes a byte: room, huge pages, memlock and a device with an address for RDMA."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError
from slacktier_tierd.node.memory_facts import HUGE_PAGE_BYTES, available_bytes, free_huge_pages, memlock_bytes

GIB: Final = 1 << 30
_INFINIBAND: Final = Path("/sys/class/infiniband")
_NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"


def check_memory(byte_count: int, *, hugepages: bool) -> None:
    """Raises ConfigError where the table has no room, with both figures."""
    if hugepages:
        needed, found = -(-byte_count // HUGE_PAGE_BYTES), free_huge_pages()
        if found < needed:
            raise ConfigError(
                f"the table needs {needed} huge pages of 2 MiB, {found} are free",
                hint=f"sysctl vm.nr_hugepages={needed}, or a pod with hugepages-2Mi, or hugepages: false",
            )
        return
    room = available_bytes(hugepages=False)
    if room < byte_count:
        raise ConfigError(
            f"the table needs {byte_count / GIB:.2f} GiB of memory, {room / GIB:.2f} GiB are available",
            hint="raise the container's memory limit, or choose another node",
        )


def check_rdma(byte_count: int, *, infiniband: Path = _INFINIBAND) -> None:
    """Raises ConfigError for what keeps memory from being registered: memlock, no device, no address (GID)."""
    limit = memlock_bytes()
    if limit < byte_count:
        raise ConfigError(
            f"RLIMIT_MEMLOCK is {limit} bytes, registering the table needs {byte_count}",
            hint="raise it (ulimit -l unlimited, or the container runtime's LimitMEMLOCK); IPC_LOCK helps root only",
        )
    devices = sorted(infiniband.iterdir()) if infiniband.is_dir() else []
    if not devices:
        raise ConfigError("no RDMA device under /sys/class/infiniband", hint="the pod needs an rdma/... resource")
    if not any(_has_gid(device) for device in devices):
        raise ConfigError(
            f"RDMA devices {', '.join(device.name for device in devices)}: none has an address (GID)",
            hint="bring the network interface up and give it an address",
        )


def _has_gid(device: Path) -> bool:
    return any(gid.read_text().strip() != _NO_GID for gid in device.glob("ports/*/gids/*"))
