# SPDX-License-Identifier: Apache-2.0
"""Which file a path leads to, whatever its name: links to one file have one identity."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from slacktier.region import open_error

FileId = tuple[int, int]  # device, inode


def file_id(found: os.stat_result) -> FileId:
    return found.st_dev, found.st_ino


def file_ids(paths: Iterable[Path]) -> frozenset[FileId]:
    """Of the regular files among these paths, through links; a link to nothing has none. Raises ConfigError."""
    ids = set()
    for path in paths:
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        except OSError as exc:
            raise open_error(path, exc) from exc
        if stat.S_ISREG(found.st_mode):
            ids.add(file_id(found))
    return frozenset(ids)
