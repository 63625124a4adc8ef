# SPDX-License-Identifier: Apache-2.0
"""Starts memory nodes and asks them how they are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from slacktier.errors import TierUnavailableError
from slacktier.tiers import Tier
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.memory_node.process import control_path

_START_S: Final = 30.0
_ANSWER_S: Final = 3.0


def start(config: MemoryNodeConfig) -> None:
    """Start a memory node and return at once; it loads by itself. One of that name that runs is left alone."""
    if status(Path(config.run_dir), config.name).state != "absent":
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "slacktier_tierd.memory_node.process"], input=config.model_dump_json().encode(),
        env=environment, timeout=_START_S, check=False, capture_output=True, start_new_session=True,
    )  # fmt: skip
    if done.returncode:
        raise TierUnavailableError(
            f"memory node {config.name} did not start: {done.stderr.decode(errors='replace').strip()[-400:]}",
            tier=config.tier.value, operation="start", target=config.name,
        )  # fmt: skip


def status(run_dir: Path, name: str) -> MemoryNodeStatus:
    """What a memory node says of itself; state `absent` where no process answers."""
    return _ask(run_dir, name, "status")


def stop(run_dir: Path, name: str) -> MemoryNodeStatus:
    """Tell a memory node to end; its last status, `absent` where there was none."""
    return _ask(run_dir, name, "stop")


def _ask(run_dir: Path, name: str, what: str) -> MemoryNodeStatus:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ANSWER_S)
        try:
            sock.connect(str(control_path(run_dir, name)))
            sock.sendall(f'{{"do": "{what}"}}\n'.encode())
            with sock.makefile("r", encoding="utf-8") as stream:
                line = stream.readline(1 << 16)
        except TimeoutError as exc:
            raise TierUnavailableError(
                f"memory node {name}: no answer within {_ANSWER_S:g} s",
                tier=Tier.TCP.value,
                operation=what,
                target=name,
            ) from exc
        except OSError:
            return MemoryNodeStatus(name=name, state="absent")
    if not line:
        return MemoryNodeStatus(name=name, state="absent")
    return MemoryNodeStatus.model_validate_json(line)
