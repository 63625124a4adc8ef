# SPDX-License-Identifier: Apache-2.0
"""How late this process does what is due: a timer that should fire every few ms, and every pause that ends.

An answer's chunk waits for as long as a due timer does before it is read, so lag is what the generator itself may have
added to any time that it measured.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Final

import gevent

from slacktier_cli.replay.metrics import percentile

PERIOD_S: Final = 0.005


class LagMeter:
    """Runs from start() to stop() in one greenlet."""

    def __init__(self) -> None:
        self._samples_ms: list[float] = []
        self._greenlet: gevent.Greenlet[..., None] | None = None
        self._began = (0.0, 0.0)

    def start(self) -> None:
        self._samples_ms = []
        self._began = (time.perf_counter(), time.process_time())
        self._greenlet = gevent.spawn(self._run)

    def add(self, late_s: float) -> None:
        """Something that was due happened so much later."""
        self._samples_ms.append(max(0.0, 1000 * late_s))

    def _run(self) -> None:
        while True:
            due = time.perf_counter() + PERIOD_S
            gevent.sleep(PERIOD_S)
            self.add(time.perf_counter() - due)

    def stop(self) -> dict[str, Any]:
        """The block's load as records.GeneratorLoad takes it."""
        if self._greenlet is not None:
            self._greenlet.kill()
        wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        ordered = sorted(self._samples_ms) or [0.0]
        lag = [percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1]]
        process = f"{socket.gethostname()}:{os.getpid()}"
        return {"process": process, "lag_ms": lag, "samples": len(self._samples_ms), "cpu": cpu / wall}
