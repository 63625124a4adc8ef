# SPDX-License-Identifier: Apache-2.0
"""The generator as a process: it never outlives the run that started it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

from misbehaving_server import Behaviour, misbehaving, sent_by

from slacktier_loadtest.handle import worker_command
from slacktier_loadtest.script import BlockScript, RequestShape, SessionScript, TurnScript
from slacktier_loadtest.wire import LineSocket


def test_generator_whose_run_is_gone_ends_in_the_middle_of_a_block() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "slacktier_loadtest.generator", "--control-fd", str(theirs.fileno())]
    user = (SessionScript("s", (TurnScript("1", "2", 8),)),)
    with misbehaving(Behaviour(first_s=60)) as url, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        lines = LineSocket(ours)
        assert next(lines.messages()) == {"ready": 1}
        lines.send({"block": BlockScript((user,), (url,), RequestShape("prompt", "", {}), {}, 90.0).as_json()})
        while not sent_by(url):
            time.sleep(0.05)
        lines.close()
        assert process.wait(20) == 0


def test_workers_that_run_elsewhere_end_with_the_run() -> None:
    ours, theirs = socket.socketpair()
    port = 25583
    command = [sys.executable, "-m", "slacktier_loadtest.generator", "--control-fd", str(theirs.fileno()), "--workers",
               "1", "--bind-port", str(port)]  # fmt: skip
    with (
        subprocess.Popen(command, pass_fds=[theirs.fileno()]) as master,
        subprocess.Popen(worker_command(("127.0.0.1", port))) as worker,
    ):
        theirs.close()
        lines = LineSocket(ours)
        assert next(lines.messages())["ready"] >= 1
        lines.close()
        assert master.wait(20) == 0
        assert worker.wait(20) == 0  # and not after Locust's minute without a heartbeat
