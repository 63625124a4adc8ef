# SPDX-License-Identifier: Apache-2.0
"""The generator process as a run sees it: started, told blocks, ended. Locust stays out of the run's own process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError, SlackTierError
from slacktier_loadtest.records import BlockRecords
from slacktier_loadtest.script import BlockScript
from slacktier_loadtest.wire import LineSocket

_STOP_S: Final = 10.0
_LOG_LINES: Final = 8
LOCUSTFILE: Final = Path(__file__).parent / "generator" / "locustfile.py"

Told = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class GeneratorOptions:
    """Which processes send.

    workers    Locust workers besides the master; 0: one process does all
    wrapper    a command that starts the one in its last arguments, such as one that raises its priority
    is_local   start the workers on this machine; else they are waited for
    bind       host and port at which workers find the master
    """

    workers: int = 0
    is_local: bool = True
    bind: tuple[str, int] = ("127.0.0.1", 5557)
    wrapper: tuple[str, ...] = ()


class Generator:
    """A running generator."""

    def __init__(self, lines: LineSocket, log: Path) -> None:
        self._lines = lines
        self._messages = lines.messages()
        self._log = log
        self.process_count = 0

    def wait_ready(self) -> None:
        """Until it can send; raises SlackTierError if it cannot."""
        self.process_count = self._next()["ready"]

    def run(self, script: BlockScript, told: Told) -> BlockRecords:
        """One block; `told` hears progress. Raises SlackTierError if the generator fails."""
        with contextlib.suppress(BrokenPipeError):  # _next() says why it is gone
            self._lines.send({"block": script.as_json()})
        while True:
            message = self._next()
            if "result" in message:
                return BlockRecords.from_json(message["result"])
            told(message["progress"])

    def _next(self) -> dict[str, Any]:
        try:
            message = next(self._messages, None)
        except OSError:
            message = None
        if message is None:
            raise SlackTierError(f"the load generator ended: {_log_end(self._log)}", hint=f"its log is {self._log}")
        if "error" in message:
            raise SlackTierError(f"the load generator: {message['error']}", hint=f"its log is {self._log}")
        return message


@contextmanager
def running_generator(options: GeneratorOptions, log: Path) -> Iterator[Generator]:
    """Start it; it and its local workers are ended when the block is left, however it is left."""
    check_locust()
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("wb"))
        master = [
            *options.wrapper, *_python("slacktier_loadtest.generator"), "--control-fd", str(theirs.fileno()),
            "--workers", str(options.workers), "--bind-host", options.bind[0], "--bind-port", str(options.bind[1]),
        ]  # fmt: skip
        stack.enter_context(_child(master, output, fds=(theirs.fileno(),)))
        theirs.close()
        if options.is_local:
            for _ in range(options.workers):
                stack.enter_context(_child([*options.wrapper, *worker_command(options.bind)], output))
        try:
            yield Generator(LineSocket(ours), log)
        finally:
            ours.close()  # it then ends by itself


def worker_command(master: tuple[str, int]) -> list[str]:
    """The Locust worker that joins the master at (host, port)."""
    return [
        *_python("locust"), "-f", str(LOCUSTFILE), "--worker", "--master-host", master[0],
        "--master-port", str(master[1]), "--loglevel", "WARNING",
    ]  # fmt: skip


def check_locust() -> None:
    """Raises ConfigError where Locust is not installed; does not import it here."""
    from importlib.util import find_spec

    if find_spec("locust") is None:
        raise ConfigError("locust is not installed", hint="pip install 'slacktier[loadtest]'")


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]


@contextmanager
def _child(command: list[str], output: Any, fds: tuple[int, ...] = ()) -> Iterator[None]:
    # A session of its own: a Ctrl-C at the terminal reaches us, and we end the child in our own time.
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=fds, start_new_session=True,
        env={**os.environ, "LOCUST_SKIP_UPDATE_CHECK": "1"},
    )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _log_end(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-_LOG_LINES:]) or "it wrote nothing"
