# SPDX-License-Identifier: Apache-2.0
"""Judges facts: what each one means for SlackTier and what to do about it. Pure."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slacktier_cli.doctor.facts import Facts
from slacktier_native.rdma_ports import ACTIVE, usable_gid

DEMO_DISK_BYTES: Final = (
    5 << 30
)  # the demo's tables fit in 4 GiB; the rest is for their checkpoints' headers and reports
DEMO_MEMORY_BYTES: Final = 4 << 30
MEMLOCK_BYTES_WANTED: Final = 1 << 30  # one rank's pinned pool
IN_MEMORY_FILESYSTEMS: Final = ("tmpfs", "ramfs")
EXTRA_USES: Final = {
    "emulated": "the emulated engine and the demo",
    "engine": "row ids from text",
    "plan": "read models fitted to measurements",
    "plots": "figures in reports",
}


class Status(StrEnum):
    """ok: as wanted. warn: works, at a cost. missing: something does not work without it."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. needed: the demo does not run without it."""

    name: str
    status: Status
    found: str
    means: str
    remedy: str = ""
    needed: bool = False


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _errno_name(number: int) -> str:
    return errno.errorcode.get(number, f"errno {number}")


def check_python(facts: Facts) -> Check:
    found = ".".join(map(str, facts.python))
    means = "runs the commands"
    if facts.python >= (3, 11):
        return Check("python", Status.OK, found, means, needed=True)
    return Check("python", Status.MISSING, found, "SlackTier needs 3.11 or newer", "install python3.11", needed=True)


def check_native(facts: Facts) -> Check:
    name = "native library"
    if not facts.native_error:
        return Check(name, Status.OK, "loads", "stages, verifies and reads tables", needed=True)
    remedy = "run `make setup`, which installs a C compiler where it may, or `make native`"
    return Check(name, Status.MISSING, facts.native_error, "no table can be staged or read", remedy, needed=True)


def _uring_cause(facts: Facts) -> tuple[str, str]:
    """(likely cause, remedy) of a refused io_uring_setup."""
    uring = facts.uring
    if uring.setup_errno == errno.EPERM and uring.disabled:
        return f"kernel.io_uring_disabled={uring.disabled}", "sysctl -w kernel.io_uring_disabled=0"
    if uring.setup_errno in (errno.EPERM, errno.ENOSYS) and uring.seccomp:
        return "the container's seccomp profile", (
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
        )
    if uring.setup_errno == errno.EPERM:
        return "a security module", "see the audit log for what refused io_uring_setup"
    if uring.setup_errno == errno.ENOSYS:
        return "a kernel older than 5.1, or a sandbox without io_uring", "run on a Linux kernel that has it"
    if uring.setup_errno == errno.ENOMEM:
        return "the locked-memory limit, which rings count against before Linux 5.12", "ulimit -l unlimited"
    return "unknown", ""


def check_uring(facts: Facts) -> Check:
    means = "reads go through preadv threads: the same bytes for more processor time"
    if facts.uring.setup_errno == 0 and facts.backend == "posix":
        found = "the kernel allows it, the library was built without it"
        return Check("io_uring", Status.WARN, found, means, "apt-get install liburing-dev, then make native")
    if facts.uring.setup_errno == 0:
        return Check("io_uring", Status.OK, "usable", "one thread keeps hundreds of reads in flight")
    cause, remedy = _uring_cause(facts)
    found = f"refused: {_errno_name(facts.uring.setup_errno)}; likely cause: {cause}"
    return Check("io_uring", Status.WARN, found, means, remedy)


def check_direct(facts: Facts) -> Check:
    directory = facts.directory
    where = f"{directory.filesystem} at {directory.path}"
    elsewhere = "name a directory on a disk: --dir DIR"
    if directory.filesystem in IN_MEMORY_FILESYSTEMS:
        means = "a table here lies in memory: its read times say nothing about a disk"
        return Check("O_DIRECT", Status.WARN, where, means, elsewhere)
    if directory.direct_errno == 0:
        return Check("O_DIRECT", Status.OK, where, "reads come from the disk, past the page cache")
    found = f"{_errno_name(directory.direct_errno)} ({os.strerror(directory.direct_errno)}), {where}"
    if directory.direct_errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return Check("O_DIRECT", Status.MISSING, found, "no table can be staged here", elsewhere, needed=True)
    means = "reads may come from the page cache: their times say little about the disk"
    return Check("O_DIRECT", Status.WARN, found, means, elsewhere)


def check_disk(facts: Facts) -> Check:
    found = f"{_gib(facts.directory.free_bytes)} free on {facts.directory.device}"
    if facts.directory.free_bytes >= DEMO_DISK_BYTES:
        return Check("disk space", Status.OK, found, "room for the demo's tables", needed=True)
    return Check(
        "disk space", Status.MISSING, found, f"the demo's default tables want {_gib(DEMO_DISK_BYTES)}",
        "free some, or name another directory: --dir DIR", needed=True,
    )  # fmt: skip


def check_memory(facts: Facts) -> Check:
    found = f"{_gib(facts.memory_available_bytes)} available"
    if facts.memory_available_bytes >= DEMO_MEMORY_BYTES:
        return Check("memory", Status.OK, found, "room for tables in tier dram and for row caches")
    means = f"the demo's DRAM table wants {_gib(DEMO_MEMORY_BYTES)}"
    return Check("memory", Status.WARN, found, means, "stop other programs, or run a smaller table")


def check_cgroup(facts: Facts) -> Check:
    limit = facts.cgroup_limit_bytes
    if limit is None:
        return Check("cgroup limit", Status.OK, "none", "memory is bounded by the machine alone")
    status = Status.OK if limit >= DEMO_MEMORY_BYTES else Status.WARN
    means = "tables in tier dram, row caches and the page cache count against it"
    remedy = "" if status is Status.OK else f"raise the container's memory limit to {_gib(DEMO_MEMORY_BYTES)} or more"
    return Check("cgroup limit", status, _gib(limit), means, remedy)


def check_hugepages(facts: Facts) -> Check:
    mode = facts.transparent_hugepages
    found = f"transparent: {mode or 'not supported'}; reserved and free: {facts.hugepages_free}"
    if mode in ("always", "madvise"):
        return Check("huge pages", Status.OK, found, "tables in memory and row caches may use them")
    return Check(
        "huge pages", Status.WARN, found, "tables in memory and row caches lie on 4 KiB pages: slower look-ups",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip


def check_cpu(facts: Facts) -> Check:
    flags = {flag.replace("sse4_2", "sse4.2") for flag in facts.cpu_flags}
    found = (
        ", ".join(name for name in ("sse4.2", "avx2", "avx512f") if name in flags) or "none of sse4.2, avx2, avx512f"
    )
    if "sse4.2" in flags:
        return Check("cpu features", Status.OK, found, "row checksums are computed by an instruction")
    return Check("cpu features", Status.WARN, found, "row checksums are computed from a table: slower reads")


def check_memlock(facts: Facts) -> Check:
    if facts.memlock_bytes is None:
        return Check("locked memory", Status.OK, "unlimited", "pools can be pinned and registered for RDMA")
    found = f"{facts.memlock_bytes / 2**20:.0f} MiB"
    if facts.memlock_bytes >= MEMLOCK_BYTES_WANTED:
        return Check("locked memory", Status.OK, found, "pools up to this size can be pinned and registered for RDMA")
    means = "larger pools cannot be pinned or registered for RDMA; tiers dram and nvme do not need it"
    return Check("locked memory", Status.WARN, found, means, "ulimit -l unlimited, or LimitMEMLOCK=infinity in a unit")


def check_rdma(facts: Facts) -> Check:
    """A device, a port that is up, a GID to speak from, the right to open it: the first of these that is missing."""
    name, rdma, means = "rdma devices", facts.rdma, "tier rdma is not possible here; it never turns into another tier"
    if not rdma.ports:
        remedy = "load the NIC's RDMA driver (`rdma link` lists devices); in a pod ask for its rdma/ resource"
        return Check(name, Status.MISSING, "none", means, remedy)
    down = [f"{port.label} is {port.state}" for port in rdma.ports if port.state != ACTIVE]
    up = [port for port in rdma.ports if port.state == ACTIVE]
    if not up:
        remedy = "`ip link set NETDEV up`, or on InfiniBand start a subnet manager"
        return Check(name, Status.MISSING, ", ".join(down), means, remedy)
    usable = [(port, gid) for port in up if (gid := usable_gid(port)) is not None]
    if not usable:
        found = ", ".join(f"{port.label} has no usable GID" for port in up)
        remedy = "give its network device an IP address: RoCE v2 GIDs are made of these, all others are zero"
        return Check(name, Status.MISSING, found, means, remedy)
    if rdma.denied:
        found = f"no access to {', '.join(rdma.denied)}"
        return Check(name, Status.MISSING, found, means, "chmod 666 on it, or in a pod ask for the rdma/ resource")
    found = ", ".join(f"{port.label}, GID {gid.index} {gid.address}" for port, gid in usable)
    return Check(name, Status.OK, ", ".join([found, *down]), "another node's memory could be read")


def check_verbs(facts: Facts) -> Check:
    name = "rdma library"
    if not facts.rdma.library_error:
        return Check(name, Status.OK, "libibverbs loads", "reads a memory node's rows")
    remedy = "apt-get install libibverbs1 ibverbs-providers libibverbs-dev, then make native"
    return Check(name, Status.MISSING, facts.rdma.library_error, "tier rdma cannot be read from here", remedy)


def check_pyverbs(facts: Facts) -> Check:
    if not facts.rdma.pyverbs_error:
        return Check("pyverbs", Status.OK, "installed", "this machine can be a memory node over RDMA")
    return Check(
        "pyverbs", Status.MISSING, facts.rdma.pyverbs_error, "this machine cannot be a memory node over RDMA",
        "apt-get install python3-pyverbs, or pip install 'slacktier[rdma]'",
    )  # fmt: skip


def check_nvme(facts: Facts) -> Check:
    if facts.nvme_devices:
        return Check("nvme devices", Status.OK, ", ".join(facts.nvme_devices), "listed only, never opened")
    means = "tables in files still work, at the speed of the disk under them"
    return Check("nvme devices", Status.MISSING, "none", means)


def check_extra(name: str, missing: tuple[str, ...]) -> Check:
    use = EXTRA_USES[name]
    if not missing:
        return Check(f"extra {name}", Status.OK, "installed", use, needed=name == "emulated")
    found, remedy = f"lacks {', '.join(missing)}", f"pip install 'slacktier[{name}]'"
    return Check(f"extra {name}", Status.MISSING, found, f"needed for {use}", remedy, needed=name == "emulated")


def check_fio(facts: Facts) -> Check:
    if facts.fio:
        return Check("fio", Status.OK, "installed", "staging can be compared with it")
    return Check("fio", Status.MISSING, "not installed", "staging cannot be compared with it", "apt-get install fio")


CHECKS: Final[tuple[Callable[[Facts], Check], ...]] = (
    check_python, check_native, check_uring, check_direct, check_disk, check_memory, check_cgroup, check_hugepages,
    check_cpu, check_memlock, check_rdma, check_verbs, check_pyverbs, check_nvme, check_fio,
)  # fmt: skip


def judge(facts: Facts) -> list[Check]:
    """All lines, in the order in which a person reads them."""
    return [check(facts) for check in CHECKS] + [check_extra(name, facts.extras[name]) for name in EXTRA_USES]


def demo_runs(checks: list[Check]) -> bool:
    """Whether nothing that the demo needs is missing."""
    return not any(check.needed and check.status is Status.MISSING for check in checks)
