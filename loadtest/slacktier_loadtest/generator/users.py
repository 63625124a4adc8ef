# SPDX-License-Identifier: Apache-2.0
"""The Locust user: replays its sessions, then stops. Each request is fired as TTFT, TPOT and E2E for Locust's page."""

from __future__ import annotations

import time
from typing import ClassVar

from locust import User, constant, task
from locust.exception import StopUser

from slacktier_cli.replay.metrics import Outcome, StreamRecord
from slacktier_loadtest.client import StreamingClient, Target
from slacktier_loadtest.generator.seat import Seat
from slacktier_loadtest.records import Finished
from slacktier_loadtest.script import BlockScript, SessionScript, payloads


class SessionUser(User):
    """One client of a closed loop, or one arriving session of an open one; the desk decides which sessions it has."""

    wait_time = constant(0)
    seat: ClassVar[Seat]

    @task
    def replay(self) -> None:
        """All sessions of this user; Locust's own pacing plays no part, the scripts say when a request is due."""
        claimed = self.seat.claim()
        if claimed is None:
            raise StopUser
        index, script = claimed
        target = Target.parse(script.urls[index % len(script.urls)], script.headers)
        client = StreamingClient(target, timeout_s=script.timeout_s)
        self.seat.wait_for_start()
        began = time.perf_counter()
        finished: list[Finished] = []
        for session in script.users[0]:
            if session.start_s:
                self.seat.pause_until(began + session.start_s)
            self._session(client, index, session, script, finished)
        self.seat.finish(index, finished)
        raise StopUser

    def _session(
        self, client: StreamingClient, index: int, session: SessionScript, script: BlockScript, finished: list[Finished]
    ) -> None:
        ended = time.perf_counter()
        for turn_index, (turn, payload) in enumerate(payloads(session, script.shape)):
            if turn.pause_s:
                self.seat.pause_until(ended + turn.pause_s)
            record = client.complete(script.shape.path, payload)
            ended = time.perf_counter()
            self.seat.count(record)
            self._fire(record, script.shape.path)
            finished.append(Finished(index, session.name, turn_index, turn.max_tokens, record))

    def _fire(self, record: StreamRecord, name: str) -> None:
        error = None if record.outcome is Outcome.COMPLETED else RuntimeError(record.error)
        figures = {"TTFT": record.ttft_ms, "TPOT": record.tpot_ms, "E2E": record.e2e_ms}
        for kind, value in figures.items():
            if value is not None or (error is not None and kind == "E2E"):
                self.environment.events.request.fire(
                    request_type=kind, name=name, response_time=value or 0.0,
                    response_length=max(0, record.completion_tokens), exception=error, context={},
                )  # fmt: skip
