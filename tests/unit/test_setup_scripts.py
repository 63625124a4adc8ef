# SPDX-License-Identifier: Apache-2.0
"""Set-up on machines that lack things: what it installs, what it says, and that it goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "env", "basename", "cat", "dirname", "mkdir", "id")
OLD_PYTHON = "#!/usr/bin/env bash\n[ \"$1\" = --version ] && echo 'Python 3.9.2' || exit 1\n"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A made-up machine: bin/ holds a few tools and no compiler, no Python and no apt-get."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return tmp_path


def add_program(machine: Path, name: str, text: str) -> None:
    (machine / "bin" / name).write_text(text)
    (machine / "bin" / name).chmod(0o755)


def run_script(machine: Path, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(machine / "bin/bash"), str(ROOT / "mk" / script), *args], cwd=machine, env={"PATH": f"{machine}/bin"},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_without_apt_it_says_what_to_install_and_goes_on(machine: Path) -> None:
    done = run_script(machine, "system-packages.sh")
    assert done.returncode == 0
    assert "please install these yourself: make gcc libc6-dev liburing-dev python3 python3-venv" in done.stderr


def test_further_packages_are_asked_for_by_the_command_or_header_that_is_missing(machine: Path) -> None:
    add_program(machine, "mkfs.ext4", "#!/usr/bin/env bash\n")
    wanted = ("fio", "mkfs.ext4=e2fsprogs", "modprobe=kmod", "infiniband/verbs.h=libibverbs-dev")
    done = run_script(machine, "system-packages.sh", *wanted)
    assert (
        "please install these yourself: make gcc libc6-dev liburing-dev python3 python3-venv fio kmod libibverbs-dev"
        in (done.stderr)
    )


def test_says_what_it_installs_before_it_does(machine: Path) -> None:
    add_program(machine, "apt-get", '#!/usr/bin/env bash\necho apt-get "$@"\n')
    if os.geteuid() != 0:
        add_program(machine, "sudo", '#!/usr/bin/env bash\n[ "$1" = -n ] && shift\n"$@"\n')
    done = run_script(machine, "system-packages.sh")
    assert done.returncode == 0
    said, installed = done.stdout.splitlines()
    assert said == "setup: installing with apt-get: make gcc libc6-dev liburing-dev python3 python3-venv"
    assert installed.startswith("apt-get install ")
    assert done.stderr == ""


def test_refusal_is_remembered_so_that_nobody_is_asked_again(machine: Path) -> None:
    add_program(machine, "apt-get", "#!/usr/bin/env bash\necho tried >>tries\nexit 100\n")
    add_program(machine, "sudo", "#!/usr/bin/env bash\nexit 1\n")
    first, second = run_script(machine, "system-packages.sh"), run_script(machine, "system-packages.sh")
    assert (first.returncode, second.returncode) == (0, 0)
    assert "please install these yourself" in first.stderr
    assert "installing was refused before" in second.stderr
    assert "installing with apt-get" not in second.stdout


def test_old_python_is_named_with_the_way_out(machine: Path) -> None:
    add_program(machine, "python3", OLD_PYTHON)
    done = run_script(machine, "python.sh")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer, found Python 3.9.2" in done.stderr
    assert "make setup PYTHON=" in done.stderr


def test_newer_python_behind_an_old_one_is_found(machine: Path) -> None:
    add_program(machine, "python3", OLD_PYTHON)
    add_program(machine, "python3.11", "#!/usr/bin/env bash\n")
    done = run_script(machine, "python.sh")
    assert done.stdout.strip() == str(machine / "bin/python3.11")


def test_python_without_venv_is_named_and_nothing_half_made_is_left(machine: Path) -> None:
    add_program(machine, "python3", "#!/usr/bin/env bash\n[[ $2 == *ensurepip* ]] && exit 1 || exit 0\n")
    done = run_script(machine, "make-venv.sh", ".venv")
    assert done.returncode == 1
    assert "hint: install python3-venv and run make again" in done.stderr
    assert not (machine / ".venv").exists()
