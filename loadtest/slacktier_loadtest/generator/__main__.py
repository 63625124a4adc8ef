# SPDX-License-Identifier: Apache-2.0
"""`python -m slacktier_loadtest.generator`: Locust as a child process of a run, told what to send over a socket.

One JSON object per line. In: {"block": BlockScript}. Out: {"ready": processes} once, {"progress": {...}} during a
block, then {"result": BlockRecords} or {"error": text}. The end of the socket ends the process.
"""

from __future__ import annotations

# Locust first: it patches sockets, which everything after it uses.
from locust import log as locust_log  # isort: skip
import argparse
import contextlib
import os
import socket
import time
from typing import Any, Final

import gevent
from gevent.queue import Queue
from locust.env import Environment
from locust.runners import MasterRunner, Runner

from slacktier.errors import SlackTierError
from slacktier_loadtest.generator.desk import Desk, WorkerLostError
from slacktier_loadtest.generator.seat import Seat
from slacktier_loadtest.generator.users import SessionUser
from slacktier_loadtest.script import BlockScript
from slacktier_loadtest.wire import LineSocket

WORKERS_S: Final = 120.0
QUIT_S: Final = 2.0


def main() -> None:
    options = _options()
    locust_log.setup_logging("WARNING")
    environment = Environment(user_classes=[SessionUser])
    parent = LineSocket(socket.socket(fileno=options.control_fd))
    runner = _runner(environment, options)
    desk = Desk(runner)
    try:
        if options.workers:
            _wait_for_workers(desk, options.workers)
        parent.send({"ready": desk.process_count})
        _serve(parent, desk, options.workers, runner)
    except (SlackTierError, OSError) as exc:
        parent.send({"error": str(exc)})
    finally:
        runner.quit()
        parent.close()


def _listen(parent: LineSocket, blocks: Queue[dict[str, Any]], runner: Runner) -> None:
    """Hand blocks on; once the parent is gone, so is this process, also in the middle of a block."""
    with contextlib.suppress(OSError):
        for message in parent.messages():
            blocks.put(message)
    if isinstance(runner, MasterRunner):
        with contextlib.suppress(gevent.Timeout), gevent.Timeout(QUIT_S):
            runner.quit()  # workers that are not told stay for a minute, until they miss its heartbeat
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="slacktier_loadtest.generator")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--workers", type=int, default=0, help="processes that join; 0: this one sends")
    parser.add_argument("--bind-host", default="127.0.0.1")
    parser.add_argument("--bind-port", type=int, default=5557)
    return parser.parse_args()


def _runner(environment: Environment, options: argparse.Namespace) -> Runner:
    if options.workers:
        return environment.create_master_runner(options.bind_host, options.bind_port)
    runner = environment.create_local_runner()
    SessionUser.seat = Seat(runner)
    return runner


def _wait_for_workers(desk: Desk, wanted: int) -> None:
    deadline = time.monotonic() + WORKERS_S
    while desk.process_count < wanted:
        if time.monotonic() > deadline:
            raise WorkerLostError(f"{desk.process_count} of {wanted} Locust workers came within {WORKERS_S:g} s")
        gevent.sleep(0.05)


def _serve(parent: LineSocket, desk: Desk, workers: int, runner: Runner) -> None:
    blocks: Queue[dict[str, Any]] = Queue()
    gevent.spawn(_listen, parent, blocks, runner)
    while True:
        message = blocks.get()
        if workers:
            _wait_for_workers(desk, workers)
        script = BlockScript.from_json(message["block"])
        parent.send({"result": desk.run(script, lambda progress: parent.send({"progress": progress}))})


if __name__ == "__main__":
    main()
