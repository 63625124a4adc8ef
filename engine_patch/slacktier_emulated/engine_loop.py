# SPDX-License-Identifier: Apache-2.0
"""The engine process's loop: frames in, steps, frames out.

Order within a step: begin the lookups, send what the step before yielded, wait for the rows and check them, take the
tokens, read commands, prepare the next step, and only then wait for the step's end. So the next step begins at once.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from slacktier.errors import ConfigError, SlackTierError
from slacktier_emulated import channel
from slacktier_emulated.channel import FrameKind
from slacktier_emulated.clock import Clock
from slacktier_emulated.control import parse_control
from slacktier_emulated.engine import Engine, Prepared
from slacktier_emulated.link import Link
from slacktier_emulated.step import LookupFailedError

PROBE_S: Final = 1.0


class EngineLoop:
    """Serves one link until the server stops it or goes away.

    probe_s  while the last lookup has failed and nobody asks for anything, try again this often
    """

    def __init__(self, engine: Engine, link: Link, clock: Clock, *, probe_s: float = PROBE_S) -> None:
        self._probe_s = probe_s
        self._engine = engine
        self._link = link
        self._clock = clock
        self._is_stopped = False
        self._was_ready = engine.is_ready

    def run(self) -> None:
        """Returns when told to stop, or when the server's end of the link is closed."""
        prepared: Prepared | None = None
        while not (self._is_stopped or self._link.is_closed):
            if prepared is None:
                self._send_outputs()
                self._engine.rest()
                self._commands(wait=not self._engine.scheduler.has_work)
                prepared = self._engine.prepare()
            if prepared is not None:
                prepared = self._step(prepared)
            elif not self._engine.is_ready:
                self._probe()
        self._send_outputs()

    def _step(self, prepared: Prepared) -> Prepared | None:
        """Run one step; returns the next one, if there is work for it."""
        engine = self._engine
        try:
            record = engine.begin(prepared, self._send_outputs)
        except LookupFailedError as exc:
            self._fail(prepared, exc)
            self._commands(wait=False)
            return engine.prepare()
        engine.scheduler.complete(prepared.batch)
        engine.set_health(None)
        self._send_health()
        paused_ns = self._commands(wait=False)
        following = engine.prepare()
        engine.finish(prepared, record, paused_ns=paused_ns)
        return following

    def _fail(self, prepared: Prepared, failure: LookupFailedError) -> None:
        engine = self._engine
        self._send_outputs()
        request_ids = engine.scheduler.fail(prepared.batch)
        engine.fail(failure)
        self._send_health()
        content = {"request_ids": request_ids, "message": f"the rows of this step could not be read: {failure}"}
        self._link.send(channel.json_frame(FrameKind.FAILED, content))

    def _probe(self) -> None:
        try:
            self._engine.warm_up()
        except LookupFailedError:
            return  # still not ready, and the health frame has said why
        self._send_health()

    def _send_outputs(self) -> None:
        outputs = self._engine.scheduler.take_outputs()
        if outputs:
            self._link.send(channel.encode_step(outputs))

    def _send_health(self) -> None:
        if self._engine.is_ready != self._was_ready:
            self._was_ready = self._engine.is_ready
            content = {"ready": self._engine.is_ready, "error": self._engine.last_error}
            self._link.send(channel.json_frame(FrameKind.HEALTH, content))

    def _commands(self, *, wait: bool) -> int:
        """Handle what the server has sent; returns the nanoseconds that calls took."""
        wait_s = (None if self._engine.is_ready else self._probe_s) if wait else 0.0
        paused_ns = 0
        for kind, payload in self._link.receive(wait_s):
            if kind is FrameKind.SUBMIT:
                self._engine.submit(channel.decode_submit(payload))
            elif kind is FrameKind.CANCEL:
                self._engine.scheduler.cancel(channel.decode_cancel(payload))
            elif kind is FrameKind.CALL:
                begin_ns = self._clock.now_ns()
                self._answer(json.loads(payload))
                paused_ns += self._clock.now_ns() - begin_ns
            elif kind is FrameKind.STOP:
                self._is_stopped = True
        return paused_ns

    def _answer(self, call: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"id": call["id"]}
        try:
            reply["result"] = self._call(call["method"], call["params"])
        except SlackTierError as exc:
            kind = "config" if isinstance(exc, ConfigError) else "fault"
            reply["error"] = {"kind": kind, "message": str(exc), "hint": exc.hint}
        except Exception as exc:  # a fault of ours in one call: told, counted, and no reason to end every stream
            self._engine.call_faults += 1
            message = f"engine call {call['method']} failed: {type(exc).__name__}: {exc}"
            print(f"slacktier: {message}", file=sys.stderr, flush=True)
            reply["error"] = {"kind": "fault", "message": message, "hint": ""}
        self._link.send(channel.json_frame(FrameKind.REPLY, reply))

    def _call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        engine = self._engine
        if method == "ping":
            return {}
        if method == "status":
            return engine.status()
        if method == "report":
            return engine.report(reset=bool(params.get("reset")))
        if method == "metrics":
            return {"status": engine.status(), "metrics": engine.metrics.as_json(), "core": engine.core_stats()}
        if method == "control":
            return engine.control(parse_control(params))
        raise ConfigError(f"engine call {method}: not known")
