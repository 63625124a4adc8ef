# SPDX-License-Identifier: Apache-2.0
"""The emulated engine's server as a child process, and the control calls that a run makes to it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier_cli.demo.arms import Arm
from slacktier_cli.demo.server_report import ServerReport, parse_report
from slacktier_cli.demo.tables import StagedTable
from slacktier_cli.replay.client import CompletionClient, Endpoint

_START_S: Final = 120.0
_STOP_S: Final = 20.0
_IDLE_S: Final = 30.0
_POLL_S: Final = 0.05
_LOG_LINES: Final = 8
_HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the server is started with; recorded lookups appear at `recording`, if any, when it ends.

    source   the source that every layer's region is first opened as, in --layer's grammar
    further  more options of `slacktier serve`
    wrapper  a command that starts the server's in its last arguments, such as one that enters a cgroup
    """

    tables: Sequence[StagedTable]
    config: Path
    tp: int
    profile: str
    log: Path
    recording: Path | None
    sessions: int
    source: str = "nvme"
    further: Sequence[str] = ()
    wrapper: Sequence[str] = ()


class ServerProcess:
    """A running child; `endpoint` is where it listens."""

    def __init__(self, process: subprocess.Popen[bytes], endpoint: Endpoint, log: Path) -> None:
        self._process = process
        self._log = log
        self.endpoint = endpoint

    def check(self) -> None:
        """Raises SlackTierError with the log's end if the child has ended."""
        code = self._process.poll()
        if code is not None:
            raise SlackTierError(
                f"the server ended with exit code {code}: {_log_end(self._log)}", hint=f"its log is {self._log}"
            )

    def stop(self) -> None:
        """End the child: by SIGTERM, so that it saves its recording, then by SIGKILL if it does not go."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def running_server(options: ServeOptions) -> Iterator[ServerProcess]:
    """Start the server; it is stopped when the block is left, however it is left."""
    port = _free_port()
    if options.recording is not None:
        options.recording.unlink(missing_ok=True)
    with options.log.open("wb") as log:
        # A session of its own: a Ctrl-C at the terminal reaches us, and we end the child in our own time.
        process = subprocess.Popen(
            _command_line(options, port), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    server = ServerProcess(process, Endpoint(_HOST, port), options.log)
    try:
        yield server
    finally:
        server.stop()


def _command_line(options: ServeOptions, port: int) -> list[str]:
    layers = [
        text for table in options.tables for text in ("--layer", f"{table.layer_id}={options.source}:{table.path}")
    ]
    recording = ["--record-lookups", str(options.recording)] if options.recording is not None else []
    return [
        *options.wrapper, sys.executable, "-c", "from slacktier_cli.main import main; main()",
        "serve", "--engine", "emulated", "--host", _HOST, "--port", str(port), "--profile", options.profile,
        "--tp", str(options.tp), "--config", str(options.config), "--max-running", str(options.sessions),
        *recording, *layers, *options.further,
    ]  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _log_end(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-_LOG_LINES:]) or "it wrote nothing"


class ServerControl:
    """The calls that a run makes besides completions."""

    def __init__(self, server: ServerProcess, client: CompletionClient) -> None:
        self._server = server
        self._client = client

    async def wait_ready(self) -> str:
        """Wait for the first lookup through the whole path; returns the model's name.

        raises  SlackTierError if the child ends or is not ready in time
        """
        await self._until("GET", "/readyz", _START_S, lambda answer: answer.get("ready") is True)
        models = await self._client.call("GET", "/v1/models")
        return str(models["data"][0]["id"])

    async def wait_idle(self) -> None:
        """Wait until no request runs or waits, so that a block's cut requests do not reach into the next."""

        def is_idle(answer: dict[str, Any]) -> bool:
            return not any(answer["requests"].values())

        await self._until("GET", "/slacktier/status", _IDLE_S, is_idle)

    async def _until(self, method: str, path: str, seconds: float, is_so: Callable[[dict[str, Any]], bool]) -> None:
        deadline, last = time.monotonic() + seconds, "no answer"
        while time.monotonic() < deadline:
            self._server.check()
            try:
                answer = await self._client.call(method, path)
                if is_so(answer):
                    return
                last = str(answer)
            except SlackTierError as exc:
                last = str(exc)
            await asyncio.sleep(_POLL_S)
        raise SlackTierError(f"{path} did not become so in {seconds:g} s: {last[:300]}")

    async def place(self, arm: Arm, layer_ids: Sequence[int], cache_rows: int) -> None:
        """Put an arm in force, with an empty row cache."""
        await self._client.call(
            "POST", "/slacktier/control", {"layers": [_emptied(layer_id) for layer_id in layer_ids]}
        )
        changes = [
            _change(arm, index, layer_id, cache_rows, len(layer_ids)) for index, layer_id in enumerate(layer_ids)
        ]
        await self._client.call("POST", "/slacktier/control", {"layers": changes})

    async def report(self, *, reset: bool = False) -> ServerReport:
        """Counts since the last reset."""
        return parse_report(await self._client.call("GET", f"/slacktier/report?reset={str(reset).lower()}"))

    async def backend(self) -> tuple[str, str]:
        """The I/O interface in use, and why it is not the first choice."""
        status = await self._client.call("GET", "/slacktier/status")
        return str(status["backend"]), str(status["backend_reason"])


def _emptied(layer_id: int) -> dict[str, Any]:
    return {"layer_id": layer_id, "cache_rows": 0}


def _change(arm: Arm, index: int, layer_id: int, cache_rows: int, layer_count: int) -> dict[str, Any]:
    source = arm.source(index)
    change: dict[str, Any] = {
        "layer_id": layer_id,
        "tier": source.tier.value,
        "cache_rows": arm.cache_rows(index, cache_rows, layer_count),
    }
    return {**change, "delay": source.delay} if source.tier is Tier.EMULATED else change
