# SPDX-License-Identifier: Apache-2.0
"""What the probes found, in plain values, so that checks can be tested against any machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slacktier_native.rdma_ports import Port


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """Where tables would be staged. direct_errno is 0 if a page went through O_DIRECT and came back."""

    path: Path
    filesystem: str
    device: str
    free_bytes: int
    direct_errno: int


@dataclass(frozen=True, slots=True)
class UringFacts:
    """What io_uring_setup answered.

    setup_errno   0, or why it was refused
    disabled      the value of kernel.io_uring_disabled, None on kernels without that setting
    seccomp       whether a seccomp filter is in force for this process
    """

    setup_errno: int
    disabled: int | None
    seccomp: bool


@dataclass(frozen=True, slots=True)
class RdmaFacts:
    """What tier rdma would find here.

    ports          of all devices, with their state and GIDs
    denied         device nodes that this user may not open
    library_error  why the native library cannot read by RDMA, or ""
    pyverbs_error  why this machine cannot be a memory node, or ""
    """

    ports: tuple[Port, ...]
    denied: tuple[str, ...]
    library_error: str
    pyverbs_error: str


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine. Sizes in bytes; None for a limit means that there is none.

    native_error  why the native library does not load, or ""
    backend       what the native library reads with here, "uring" or "posix"; "" where it does not load
    extras        of each optional part, the packages that are not installed
    """

    python: tuple[int, int, int]
    native_error: str
    backend: str
    uring: UringFacts
    directory: DirectoryFacts
    memory_available_bytes: int
    cgroup_limit_bytes: int | None
    transparent_hugepages: str
    hugepages_free: int
    cpu_flags: frozenset[str]
    memlock_bytes: int | None
    rdma: RdmaFacts
    nvme_devices: tuple[str, ...]
    extras: dict[str, tuple[str, ...]]
    fio: bool
