# SPDX-License-Identifier: Apache-2.0
"""`slacktier doctor`: what it says about made-up machines, and that it can look at this one."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from slacktier.errors import ConfigError
from slacktier_cli.commands import doctor
from slacktier_cli.doctor.checks import Check, Status, demo_runs, judge
from slacktier_cli.doctor.facts import DirectoryFacts, Facts, RdmaFacts, UringFacts
from slacktier_cli.doctor.probe import cgroup_limit, missing_packages, probe, probe_direct
from slacktier_native.rdma_ports import Gid, Port

GOOD = Facts(
    python=(3, 11, 2),
    native_error="",
    backend="uring",
    uring=UringFacts(setup_errno=0, disabled=0, seccomp=False),
    directory=DirectoryFacts(Path("/data"), "ext4", "/dev/vda1", free_bytes=100 << 30, direct_errno=0),
    memory_available_bytes=16 << 30,
    cgroup_limit_bytes=None,
    transparent_hugepages="madvise",
    hugepages_free=0,
    cpu_flags=frozenset({"sse4_2", "avx2"}),
    memlock_bytes=None,
    rdma=RdmaFacts(
        (Port("mlx5_0", 1, "ACTIVE", "Ethernet", (Gid(3, IPv6Address("::ffff:10.0.0.1"), "RoCE v2"),)),), (), "", ""
    ),
    nvme_devices=("nvme0 A model",),
    extras={"emulated": (), "engine": (), "plan": (), "plots": (), "dev": ("ruff",)},
    fio=True,
)


def line(facts: Facts, name: str) -> Check:
    (found,) = [check for check in judge(facts) if check.name == name]
    return found


def with_uring(setup_errno: int, *, disabled: int | None = 0, seccomp: bool = False) -> Facts:
    return replace(GOOD, uring=UringFacts(setup_errno, disabled, seccomp))


def with_directory(**changes: object) -> Facts:
    return replace(GOOD, directory=replace(GOOD.directory, **changes))


def with_rdma(**changes: object) -> Facts:
    return replace(GOOD, rdma=replace(GOOD.rdma, **changes))


def with_port(**changes: object) -> Facts:
    return with_rdma(ports=(replace(GOOD.rdma.ports[0], **changes),))


@pytest.mark.parametrize(
    ("facts", "found", "remedy"),
    [
        (with_rdma(ports=()), "none", "driver"),
        (with_port(state="DOWN"), "mlx5_0 port 1 is DOWN", "ip link set"),
        (with_port(gids=()), "mlx5_0 port 1 has no usable GID", "IP address"),
        (with_port(gids=(Gid(0, IPv6Address("fe80::1"), "IB/RoCE v1"),)), "no usable GID", "IP address"),
        (with_rdma(denied=("/dev/infiniband/uverbs0",)), "no access to /dev/infiniband/uverbs0", "rdma/ resource"),
    ],
)
def test_what_tier_rdma_lacks_is_named_with_its_remedy(facts: Facts, found: str, remedy: str) -> None:
    check = line(facts, "rdma devices")
    assert check.status is Status.MISSING
    assert found in check.found
    assert remedy in check.remedy
    assert "never turns into another tier" in check.means


def test_machine_with_everything_is_ok_throughout() -> None:
    checks = judge(GOOD)
    assert {check.status for check in checks} == {Status.OK}
    assert demo_runs(checks)


@pytest.mark.parametrize(
    ("facts", "cause", "remedy"),
    [
        (with_uring(errno.EPERM, disabled=2), "EPERM; likely cause: kernel.io_uring_disabled=2", "sysctl"),
        (with_uring(errno.EPERM, seccomp=True), "EPERM; likely cause: the container's seccomp profile", "allow io_"),
        (with_uring(errno.ENOSYS, seccomp=True), "ENOSYS; likely cause: the container's seccomp profile", "allow io_"),
        (with_uring(errno.ENOSYS, disabled=None), "ENOSYS; likely cause: a kernel older than 5.1", "Linux kernel"),
        (with_uring(errno.ENOMEM), "ENOMEM; likely cause: the locked-memory limit", "ulimit -l"),
    ],
)
def test_refused_uring_names_its_likely_cause_and_remedy(facts: Facts, cause: str, remedy: str) -> None:
    check = line(facts, "io_uring")
    assert check.status is Status.WARN
    assert cause in check.found
    assert remedy in check.remedy
    assert demo_runs(judge(facts))


def test_library_without_uring_on_a_kernel_that_allows_it_is_named() -> None:
    check = line(replace(GOOD, backend="posix"), "io_uring")
    assert check.status is Status.WARN
    assert "built without it" in check.found
    assert "liburing-dev" in check.remedy


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (replace(GOOD, python=(3, 10, 9)), "python"),
        (replace(GOOD, native_error="libslacktier_io.so is not built"), "native library"),
        (with_directory(free_bytes=1 << 30), "disk space"),
        (with_directory(direct_errno=errno.EACCES), "O_DIRECT"),
        (replace(GOOD, extras=GOOD.extras | {"emulated": ("uvicorn",)}), "extra emulated"),
    ],
)
def test_what_the_demo_needs_is_missing_with_a_remedy(facts: Facts, name: str) -> None:
    check = line(facts, name)
    assert check.status is Status.MISSING
    assert check.remedy
    assert not demo_runs(judge(facts))


@pytest.mark.parametrize(
    ("facts", "name", "status"),
    [
        (with_directory(filesystem="tmpfs"), "O_DIRECT", Status.WARN),
        (with_directory(direct_errno=errno.EINVAL), "O_DIRECT", Status.WARN),
        (replace(GOOD, memory_available_bytes=1 << 30), "memory", Status.WARN),
        (replace(GOOD, cgroup_limit_bytes=1 << 30), "cgroup limit", Status.WARN),
        (replace(GOOD, cgroup_limit_bytes=64 << 30), "cgroup limit", Status.OK),
        (replace(GOOD, transparent_hugepages="never"), "huge pages", Status.WARN),
        (replace(GOOD, cpu_flags=frozenset()), "cpu features", Status.WARN),
        (replace(GOOD, memlock_bytes=8 << 20), "locked memory", Status.WARN),
        (with_rdma(ports=()), "rdma devices", Status.MISSING),
        (with_rdma(library_error="no libibverbs.so.1"), "rdma library", Status.MISSING),
        (with_rdma(pyverbs_error="No module named 'pyverbs'"), "pyverbs", Status.MISSING),
        (replace(GOOD, nvme_devices=()), "nvme devices", Status.MISSING),
        (replace(GOOD, fio=False), "fio", Status.MISSING),
        (replace(GOOD, extras=GOOD.extras | {"plan": ("scipy",)}), "extra plan", Status.MISSING),
    ],
)
def test_what_only_costs_something_does_not_stop_the_demo(facts: Facts, name: str, status: Status) -> None:
    assert line(facts, name).status is status
    assert demo_runs(judge(facts))


def run_doctor(monkeypatch: pytest.MonkeyPatch, facts: Facts, *args: str) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "probe", lambda directory: facts)
    app = typer.Typer()
    app.command()(doctor.command)
    result = CliRunner().invoke(app, list(args))
    return result.exit_code, result.stdout


def test_json_is_one_object_with_every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_doctor(monkeypatch, GOOD, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["demo_runs"] is True
    assert [check["name"] for check in report["checks"]] == [check.name for check in judge(GOOD)]


def test_missing_need_ends_in_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_doctor(monkeypatch, replace(GOOD, native_error="not built"))
    assert code == 1
    assert "cannot run here" in out


def test_probe_looks_at_this_machine(tmp_path: Path) -> None:
    facts = probe(tmp_path)
    assert facts.python >= (3, 11)
    assert facts.native_error == ""
    assert facts.backend in ("uring", "posix")
    assert facts.uring.setup_errno == 0 or facts.backend == "posix"
    assert facts.memory_available_bytes > 0
    assert facts.directory.path == tmp_path
    assert facts.directory.filesystem
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        probe(tmp_path / "none")


def test_direct_write_into_a_missing_directory_gives_its_errno(tmp_path: Path) -> None:
    assert probe_direct(tmp_path / "none") == errno.ENOENT


def test_cgroup_limit_is_the_smallest_on_the_way_up(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/memory.max").write_text("4096\n")
    (tmp_path / "a/b/memory.max").write_text("max\n")
    assert cgroup_limit("0::/a/b", tmp_path) == 4096


def test_cgroup_v1_without_limit_is_none(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert cgroup_limit("4:memory:/", tmp_path) is None


def test_extra_inside_an_extra_counts_with_its_packages() -> None:
    requirements = [
        "numpy>=1.26",
        'slacktier[inner]; extra == "outer"',
        'no-such-package-installed>=1; extra == "inner"',
        'pytest; extra == "inner"',
    ]
    assert missing_packages("outer", requirements) == ("no-such-package-installed",)
