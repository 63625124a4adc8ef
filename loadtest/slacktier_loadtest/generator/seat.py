# SPDX-License-Identifier: Apache-2.0
"""Where users of one process get their sessions, wait for the start, and leave what they measured."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any, Final

import gevent
from gevent.event import AsyncResult, Event
from locust.env import Environment
from locust.runners import Runner

from slacktier_cli.replay.metrics import Outcome, StreamRecord
from slacktier_loadtest.generator import messages
from slacktier_loadtest.generator.lag import LagMeter
from slacktier_loadtest.records import Finished
from slacktier_loadtest.script import BlockScript

_PROGRESS_S: Final = 0.5


class Seat:
    """One per process that runs users."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._claims: dict[int, AsyncResult[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._go = Event()
        self._done = self._failed = 0
        self._tpots_ms: list[float] = []
        self._reporter: gevent.Greenlet[..., None] | None = None
        self.lag = LagMeter()
        runner.register_message(messages.WORK, self._on_work)
        runner.register_message(messages.GO, self._on_go)
        runner.register_message(messages.END, self._on_end)

    def claim(self) -> tuple[int, BlockScript] | None:
        """This user's index and sessions (a script with one user), or None if the block has no work left."""
        number = next(self._numbers)
        answer: AsyncResult[dict[str, Any]] = AsyncResult()
        self._claims[number] = answer
        self._runner.send_message(messages.CLAIM, {"claim": number})
        work = answer.get()
        if work is None or work["index"] < 0:
            return None
        return work["index"], BlockScript.from_json(work["script"])

    def wait_for_start(self) -> None:
        """Until every user of the block has its sessions."""
        self._go.wait()

    def pause_until(self, due: float) -> None:
        """Sleep until time.perf_counter() says `due`, and count how late that was."""
        gevent.sleep(max(0.0, due - time.perf_counter()))
        self.lag.add(time.perf_counter() - due)

    def count(self, record: StreamRecord) -> None:
        """For the live display."""
        if record.outcome is Outcome.COMPLETED:
            self._done += 1
            if record.tpot_ms is not None:
                self._tpots_ms.append(record.tpot_ms)
        else:
            self._failed += 1

    def finish(self, index: int, finished: list[Finished]) -> None:
        """A user is through with all its sessions."""
        self._report()
        content = {"index": index, "finished": [each.as_json() for each in finished]}
        self._runner.send_message(messages.FINISHED, content)

    def _report(self) -> None:
        tpots, self._tpots_ms = self._tpots_ms, []
        content = {"done": self._done, "failed": self._failed, "tpot_ms": sum(tpots), "tpots": len(tpots)}
        self._done = self._failed = 0
        self._runner.send_message(messages.PROGRESS, content)

    def _report_for_ever(self) -> None:
        while True:
            gevent.sleep(_PROGRESS_S)
            self._report()

    def _on_work(self, environment: Environment, msg: Any) -> None:
        # A message to all workers reaches those that did not ask, too.
        answer = self._claims.pop(msg.data["claim"], None)
        if answer is not None:
            answer.set(msg.data)

    def _on_go(self, environment: Environment, msg: Any) -> None:
        # What was built so far lives through the block: the collector need not walk it again while times are taken.
        gc.collect()
        gc.freeze()
        self.lag.start()
        self._reporter = gevent.spawn(self._report_for_ever)
        self._go.set()

    def _on_end(self, environment: Environment, msg: Any) -> None:
        if self._reporter is not None:
            self._reporter.kill()
        self._go.clear()
        gc.unfreeze()
        self._runner.send_message(messages.LOAD, self.lag.stop())
