# SPDX-License-Identifier: Apache-2.0
"""A memory cgroup around a server, so that the page cache cannot grow to hold the whole table: v2, or v1's memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError

_ROOT: Final = Path("/sys/fs/cgroup")
_REMOVE_S: Final = 5.0


class MemoryCap:
    """One cgroup; made empty and without a limit."""

    def __init__(self, directory: Path, *, is_v2: bool) -> None:
        self._directory = directory
        self._limit, self._anonymous = ("memory.max", "anon") if is_v2 else ("memory.limit_in_bytes", "rss")

    @property
    def wrapper(self) -> list[str]:
        """A command that starts the one in its last arguments inside the cgroup."""
        return ["/bin/sh", "-c", f'echo $$ > "{self._directory}/cgroup.procs" && exec "$@"', "capped"]

    def limit_page_cache(self, budget_bytes: int) -> int:
        """From now on: what the processes hold of their own, and the budget on top; the limit in bytes."""
        limit = self._anonymous_bytes() + budget_bytes
        (self._directory / self._limit).write_text(str(limit))
        return limit

    def _anonymous_bytes(self) -> int:
        lines = (self._directory / "memory.stat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == self._anonymous)

    def remove(self) -> None:
        """Once its processes have ended; the kernel may need a moment to notice."""
        deadline = time.monotonic() + _REMOVE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self._directory.rmdir()
                return
            time.sleep(0.05)
        self._directory.rmdir()


@contextmanager
def memory_cap() -> Iterator[MemoryCap]:
    """A cgroup of its own; raises ConfigError where this user may make none."""
    is_v2 = (_ROOT / "cgroup.controllers").exists()
    directory = (_ROOT if is_v2 else _ROOT / "memory") / f"slacktier-loadtest-{os.getpid()}"
    try:
        directory.mkdir()
        (directory / "memory.stat").read_text()
    except OSError as exc:
        with contextlib.suppress(OSError):
            directory.rmdir()
        raise ConfigError(
            f"arm page-cache: a memory cgroup at {directory}: {exc.strerror or exc}",
            hint="run as root where cgroups can be made, or leave the arm out",
        ) from exc
    cap = MemoryCap(directory, is_v2=is_v2)
    try:
        yield cap
    finally:
        cap.remove()


def drop_page_cache(path: Path) -> None:
    """Forget this file's cached pages, so that the capped group pays for what it reads itself."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
