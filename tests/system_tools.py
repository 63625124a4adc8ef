# SPDX-License-Identifier: Apache-2.0
"""For the levels that need root and system tools: what is missing fails the test that asked for it, never skips."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def require_root(level: str) -> None:
    """A level was asked for; without root it would test nothing."""
    if os.geteuid() != 0:
        pytest.fail(f"tests/{level} needs root: run `make test-{level}` as root or with sudo", pytrace=False)


def run_tool(*command: object) -> str:
    """stdout of a system tool; fails the test naming the tool or its complaint."""
    if shutil.which(str(command[0])) is None:
        hint = "install util-linux, mount, e2fsprogs and iproute2"
        pytest.fail(f"this test needs {command[0]}: {hint}", pytrace=False)
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(map(str, command))}: {done.stderr.strip()}", pytrace=False)
    return done.stdout.strip()
