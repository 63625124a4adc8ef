# SPDX-License-Identifier: Apache-2.0
"""How a command that has started processes ends early: with them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM acts as Ctrl-C does, so that it, too, takes along what was started. For the main thread."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
