# SPDX-License-Identifier: Apache-2.0
"""Looks at the machine. Writes one temporary file in the asked directory; opens no device."""

from __future__ import annotations

import ctypes
import errno
import importlib.metadata
import mmap
import os
import re
import resource
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError, SlackTierError
from slacktier.page import PAGE_BYTES, RowFormat, Superblock
from slacktier_cli.doctor.facts import DirectoryFacts, Facts, RdmaFacts, UringFacts
from slacktier_cli.machine import (
    CPUINFO,
    MEMINFO,
    available_memory_bytes,
    disk_of,
    filesystem_of,
    free_disk_bytes,
    proc_field,
)  # fmt: skip
from slacktier_native import rdma_ports
from slacktier_native.core import LayerSetup, LookupCore, PatternSource
from slacktier_native.rdma import rdma_library
from slacktier_native.rdma_device import load_pyverbs

SYS_IO_URING_SETUP: Final = 425  # the same on every architecture that Linux added it to
URING_PARAMS_BYTES: Final = 120
CGROUP: Final = Path("/sys/fs/cgroup")
CGROUP_V1_NO_LIMIT: Final = 1 << 62


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # a setting that this kernel does not have


def probe_uring() -> UringFacts:
    """Ask the kernel for a ring and give it back."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(URING_PARAMS_BYTES)
    fd = libc.syscall(SYS_IO_URING_SETUP, 4, params)
    setup_errno = 0 if fd >= 0 else ctypes.get_errno()
    if fd >= 0:
        os.close(fd)
    disabled = _read(Path("/proc/sys/kernel/io_uring_disabled"))
    seccomp = re.search(r"^Seccomp:\s*2", _read(Path("/proc/self/status")), re.MULTILINE)
    return UringFacts(setup_errno, int(disabled) if disabled else None, seccomp is not None)


def probe_direct(directory: Path) -> int:
    """0 if a page written with O_DIRECT to a file in directory reads back, else the errno."""
    page = mmap.mmap(-1, PAGE_BYTES)  # O_DIRECT wants an aligned buffer
    page[:] = os.urandom(PAGE_BYTES)
    expected = page[:]
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".slacktier-doctor-") as file:
            fd = os.open(file.name, os.O_RDWR | os.O_DIRECT)
            try:
                os.pwritev(fd, [page], 0)
                page[:] = bytes(PAGE_BYTES)
                os.preadv(fd, [page], 0)
            finally:
                os.close(fd)
    except OSError as exc:
        return exc.errno or errno.EIO
    return 0 if page[:] == expected else errno.EIO


def probe_directory(directory: Path) -> DirectoryFacts:
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory", hint="name one where tables would be staged: --dir DIR")
    path = directory.resolve()
    return DirectoryFacts(path, filesystem_of(path), disk_of(path), free_disk_bytes(path), probe_direct(path))


def cgroup_limit(cgroup_text: str, root: Path) -> int | None:
    """The smallest memory limit on this process's way to the root: cgroup v2, else v1; None if there is none."""
    limits = []
    for line in cgroup_text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        for directory in (group, *group.parents):
            if directory.is_relative_to(base):
                limits.append(_read(directory / name))
    values = [int(text) for text in limits if text.isdigit() and int(text) < CGROUP_V1_NO_LIMIT]
    return min(values, default=None)


def missing_packages(extra: str, requirements: list[str]) -> tuple[str, ...]:
    """Packages of one extra that are not installed; an extra of ours inside it counts with its own."""
    missing: set[str] = set()
    for requirement in requirements:
        if not re.search(rf"""extra == ["']{extra}["']""", requirement):
            continue
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?", requirement)
        if match is None:
            continue
        name, inner = match.group(1), match.group(2)
        if name == "slacktier":
            for part in (inner or "").split(","):
                missing.update(missing_packages(part.strip(), requirements))
        else:
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                missing.add(name)
    return tuple(sorted(missing))


def probe_extras() -> dict[str, tuple[str, ...]]:
    metadata = importlib.metadata.metadata("slacktier")
    requirements = importlib.metadata.requires("slacktier") or []
    return {extra: missing_packages(extra, requirements) for extra in metadata.get_all("Provides-Extra") or []}


def probe_native() -> tuple[str, str]:
    """(why the native library does not load or "", what it reads with here): opens a core over an imaginary table."""
    imaginary = Superblock(
        table_uuid=uuid.UUID(int=0), layer_id=0, epoch=0, row_count=1, payload_bytes=1, scale_bytes=0,
        row_format=RowFormat.RAW, model="", revision="", source="",
    )  # fmt: skip
    try:
        layer = LayerSetup(0, (PatternSource(imaginary, seed=0),))
        with LookupCore([layer], lookups_max=1, queue_depth=1) as core:
            return "", core.backend
    except (SlackTierError, OSError) as exc:
        return str(exc), ""


def _devices(directory: Path, label: str) -> tuple[str, ...]:
    """Names under a /sys/class directory with what that label file says; nothing is opened but sysfs text."""
    if not directory.is_dir():
        return ()
    return tuple(f"{entry.name} {_read(entry / label)}".strip() for entry in sorted(directory.iterdir()))


def probe_rdma(sysfs: Path = rdma_ports.SYSFS, nodes: Path = Path("/dev/infiniband")) -> RdmaFacts:
    """Ports from sysfs, whether device nodes may be opened, and whether both libraries load; opens no device."""
    verbs = sorted(nodes.glob("uverbs*")) if nodes.is_dir() else []
    return RdmaFacts(
        ports=tuple(rdma_ports.list_ports(sysfs)),
        denied=tuple(str(node) for node in verbs if not os.access(node, os.R_OK | os.W_OK)),
        library_error=_error_of(rdma_library), pyverbs_error=_error_of(load_pyverbs),
    )  # fmt: skip


def _error_of(load: Callable[[], object]) -> str:
    try:
        load()
    except SlackTierError as exc:
        return str(exc)
    return ""


def _transparent_hugepages() -> str:
    match = re.search(r"\[(\w+)\]", _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")))
    return match.group(1) if match else ""


def probe(directory: Path) -> Facts:
    """Look at this machine and at one directory; raises ConfigError if there is no such directory."""
    native_error, backend = probe_native()
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Facts(
        python=sys.version_info[:3],
        native_error=native_error,
        backend=backend,
        uring=probe_uring(),
        directory=probe_directory(directory),
        memory_available_bytes=available_memory_bytes(),
        cgroup_limit_bytes=cgroup_limit(_read(Path("/proc/self/cgroup")), CGROUP),
        transparent_hugepages=_transparent_hugepages(),
        hugepages_free=int(proc_field(MEMINFO, "HugePages_Free") or 0),
        cpu_flags=frozenset((proc_field(CPUINFO, "flags") or proc_field(CPUINFO, "Features")).split()),
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        rdma=probe_rdma(),
        nvme_devices=_devices(Path("/sys/class/nvme"), "model"),
        extras=probe_extras(),
        fio=shutil.which("fio") is not None,
    )
