# SPDX-License-Identifier: Apache-2.0
"""Which processors the library's threads run on: those that the thread which starts them is allowed at that moment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slacktier.errors import ConfigError


@contextmanager
def threads_on(cpus: Sequence[int]) -> Iterator[None]:
    """Threads started inside run on these processors; the caller's own choice is restored. Empty: no change.

    raises  ConfigError for processors that this process may not use
    """
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"processors {sorted(cpus)}: {exc}; this process may use {sorted(before)}") from exc
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
