# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes at its end, checked before its work begins."""

from __future__ import annotations

import os
from pathlib import Path

from slacktier.errors import ConfigError


def check_output(option: str, path: Path) -> None:
    """Raises ConfigError where no file can be written at this path; nothing is made or changed."""
    try:
        if path.is_dir():
            raise ConfigError(f"{option} {path}: is a directory, expected a file")
        if not path.parent.is_dir():
            raise ConfigError(f"{option} {path}: no such directory: {path.parent}")
        writable = os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError as exc:
        raise ConfigError(f"{option} {path}: {exc.strerror}") from exc
    if not writable:
        raise ConfigError(f"{option} {path}: cannot be written by user id {os.geteuid()}")
