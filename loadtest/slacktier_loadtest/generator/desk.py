# SPDX-License-Identifier: Apache-2.0
"""Deals a block's sessions to the users that Locust spawned, wherever they are, and collects what they measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.runners import STATE_MISSING, LocalRunner, MasterRunner, Runner

from slacktier.errors import SlackTierError
from slacktier_loadtest.generator import messages
from slacktier_loadtest.script import BlockScript

_POLL_S: Final = 0.25
_LOST_S: Final = 10.0
_LOAD_S: Final = 10.0  # a worker that has not said how busy it was by then is lost
_SPAWN_RATE_MAX: Final = 100  # users per second and process; above it Locust warns

Told = Callable[[dict[str, Any]], None]


class WorkerLostError(SlackTierError):
    """A generator process went away: the sessions that it had are not measured."""


class Desk:
    """One, in the process that has no master."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._script: BlockScript | None = None
        self._claimed = 0
        self._finished: dict[int, list[Any]] = {}
        self._loads: list[dict[str, Any]] = []
        self._told: Told = lambda _: None
        self._all_through = Event()
        runner.register_message(messages.CLAIM, self._on_claim)
        runner.register_message(messages.PROGRESS, self._on_progress)
        runner.register_message(messages.FINISHED, self._on_finished)
        runner.register_message(messages.LOAD, self._on_load)

    @property
    def process_count(self) -> int:
        """Processes that can run users, or do: those that Locust has heard of lately."""
        if isinstance(self._runner, MasterRunner):
            return sum(client.state != STATE_MISSING for client in self._runner.clients.all)
        return 1

    def run(self, script: BlockScript, told: Told) -> dict[str, Any]:
        """One block from start to end: records.BlockRecords as JSON.

        told    hears {"done", "failed", "tpot_ms", "tpots"} about twice a second
        raises  WorkerLostError
        """
        self.begin(script, told)
        processes = self.process_count
        count = len(script.users)
        self._runner.start(count, spawn_rate=min(count, _SPAWN_RATE_MAX * processes))
        self._wait(processes)
        return self.end(processes)

    def begin(self, script: BlockScript, told: Told) -> None:
        """Users may claim from now on."""
        self._script, self._told = script, told
        self._claimed, self._finished, self._loads = 0, {}, []
        self._all_through.clear()
        self._began = time.perf_counter()

    def wait_through(self) -> None:
        """Until every user that begin() told of has finished."""
        self._all_through.wait()

    def end(self, processes: int) -> dict[str, Any]:
        """After the last user: how busy the generators were, and all records."""
        seconds = time.perf_counter() - self._began
        self._runner.send_message(messages.END, {})
        deadline = time.monotonic() + _LOAD_S
        while len(self._loads) < processes and time.monotonic() < deadline:
            gevent.sleep(0.01)
        if len(self._loads) < processes:
            raise WorkerLostError(f"{len(self._loads)} of {processes} generator processes said how busy they were")
        self._runner.stop()
        finished = [each for index in sorted(self._finished) for each in self._finished[index]]
        return {"finished": finished, "seconds": seconds, "generators": self._loads}

    def _wait(self, processes: int) -> None:
        """Until every user is through. A worker silent for a while may be starved; one that stays so is lost."""
        last_all_there = time.monotonic()
        while not self._all_through.wait(_POLL_S):
            if self.process_count >= processes:
                last_all_there = time.monotonic()
            elif time.monotonic() - last_all_there > _LOST_S:
                raise WorkerLostError(
                    f"{processes - self.process_count} of {processes} generator processes went away during a block"
                )

    def _on_claim(self, environment: Environment, msg: Any) -> None:
        """The next user's sessions; when the last one has its own, all may start."""
        script, index = self._script, self._claimed
        if script is None or index >= len(script.users):
            self._reply(msg, {"claim": msg.data["claim"], "index": -1})
            return
        self._claimed += 1
        alone = BlockScript((script.users[index],), script.urls, script.shape, script.headers, script.timeout_s)
        self._reply(msg, {"claim": msg.data["claim"], "index": index, "script": asdict(alone)})
        if self._claimed == len(script.users):
            self._began = time.perf_counter()
            self._runner.send_message(messages.GO, {})

    def _reply(self, msg: Any, content: dict[str, Any]) -> None:
        if isinstance(self._runner, LocalRunner):
            self._runner.send_message(messages.WORK, content)
        else:
            self._runner.send_message(messages.WORK, content, msg.node_id)

    def _on_progress(self, environment: Environment, msg: Any) -> None:
        self._told(msg.data)

    def _on_finished(self, environment: Environment, msg: Any) -> None:
        script = self._script
        self._finished[msg.data["index"]] = msg.data["finished"]
        if script is not None and len(self._finished) == len(script.users):
            self._all_through.set()

    def _on_load(self, environment: Environment, msg: Any) -> None:
        self._loads.append(msg.data)
