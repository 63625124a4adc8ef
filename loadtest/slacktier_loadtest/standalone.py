# SPDX-License-Identifier: Apache-2.0
"""One scenario's sessions for Locust's own command line and web page, without arms and blocks."""

from __future__ import annotations

from pathlib import Path

from slacktier.errors import ConfigError
from slacktier_loadtest.running_target import model_of
from slacktier_loadtest.scenario import Load, load_scenario
from slacktier_loadtest.script import BlockScript, RequestShape, marker_ids
from slacktier_loadtest.workload import prepare

_TIMEOUT_S = 120.0


def standalone_script(host: str, scenario: str, trace: str, seed: int, users: int) -> BlockScript:
    """What so many users send to the server at `host`; raises ConfigError, or SlackTierError if it does not answer."""
    chosen = load_scenario(scenario)
    if chosen.prefill is not None:
        raise ConfigError(f"scenario {scenario}: has phases, which only `slacktier loadtest` runs one after the other")
    chosen = chosen.model_copy(update={"load": Load(users=users)})
    prepared = prepare(chosen, Path(trace) if trace else None, seed=seed, is_chat=False)
    body = {"model": model_of(host, {}), "temperature": 0, "ignore_eos": True}
    shape = RequestShape("prompt", marker_ids(0), body)
    return BlockScript(prepared.phases[0].users, (host,), shape, {}, _TIMEOUT_S)
