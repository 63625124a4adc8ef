# SPDX-License-Identifier: Apache-2.0
"""For `locust -f`: a worker of a distributed load test, or Locust with its own web page on one scenario.

    locust -f .../locustfile.py --worker --master-host HOST    joins `slacktier loadtest --workers N`
    locust -f .../locustfile.py --host http://server:8000 --users 16 --scenario chat --headless

In the second form Locust's own statistics show TTFT, TPOT and E2E; without --host of a server nothing is started.
Headless, it ends when all sessions are through.
"""

from __future__ import annotations

from typing import Any

import gevent
from locust import events
from locust.env import Environment
from locust.runners import MasterRunner, Runner, WorkerRunner

from slacktier_loadtest.generator.desk import Desk
from slacktier_loadtest.generator.seat import Seat
from slacktier_loadtest.generator.users import SessionUser
from slacktier_loadtest.standalone import standalone_script

__all__ = ["SessionUser"]


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    group = parser.add_argument_group("SlackTier")
    group.add_argument(
        "--scenario", default="chat", help="Name of a scenario, or a YAML file", env_var="SLACKTIER_SCENARIO"
    )
    group.add_argument("--trace", default="", help="Sessions: .npz or .jsonl; default: the scenario's")
    group.add_argument("--seed", type=int, default=1, help="Fixes sessions, lengths and their order")


@events.init.add_listener
def _wire_up(environment: Environment, **_: Any) -> None:
    runner = environment.runner
    if runner is None:
        return
    if not isinstance(runner, MasterRunner):
        SessionUser.seat = Seat(runner)
    if not isinstance(runner, WorkerRunner):
        desk = Desk(runner)
        environment.events.test_start.add_listener(lambda **_: _begin(environment, desk))


def _begin(environment: Environment, desk: Desk) -> None:
    options, runner = environment.parsed_options, environment.runner
    if runner is None or options is None or not environment.host:
        raise ValueError("--host: expected the server's address")
    users = runner.target_user_count
    desk.begin(
        standalone_script(environment.host, options.scenario, options.trace, options.seed, users), lambda _: None
    )
    if options.headless:
        gevent.spawn(_end_when_through, desk, runner)


def _end_when_through(desk: Desk, runner: Runner) -> None:
    desk.wait_through()
    runner.quit()
