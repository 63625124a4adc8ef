# SPDX-License-Identifier: Apache-2.0
"""What runs in Ray's workers: one long-lived actor per node, and staging tasks. Rows never pass through Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ray

from slacktier.errors import ConfigError, SlackTierError
from slacktier_tierd.node.agent import NodeAgent
from slacktier_tierd.node.stage_job import StageJob, run_stage_job

NAMESPACE: Final = "slacktier"
# A node takes this many stagings at once; each staging task holds one unit per device that it writes.
STAGINGS_PER_NODE: Final = 8


def described(exc: BaseException) -> dict[str, Any]:
    """An error as JSON: whether it is bad input, its sentence, and the way out."""
    if isinstance(exc, SlackTierError):
        return {"is_config": isinstance(exc, ConfigError), "message": str(exc), "hint": exc.hint}
    return {"is_config": False, "message": f"{type(exc).__name__}: {exc}", "hint": ""}


@ray.remote(max_restarts=-1, max_task_retries=0, num_cpus=0, max_concurrency=8)
class NodeActor:
    """A node's agent. Ray restarts it where it was; memory nodes outlive it and are found again by their sockets."""

    def __init__(self, run_dir: str) -> None:
        self._agent = NodeAgent(Path(run_dir))

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """{"result"} or {"error"}: errors of ours are answers, not failures of the actor."""
        try:
            return {"result": getattr(self._agent, method)(**params)}
        except (SlackTierError, OSError, ValueError) as exc:
            return {"error": described(exc)}


@ray.remote(max_retries=0, num_cpus=0, num_returns="streaming")
def stage(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run one staging job; yields {"news"} of its replicas, or {"error"} if it could not begin."""
    try:
        for news in run_stage_job(StageJob.model_validate(job)):
            yield {"news": news.model_dump(mode="json")}
    except (SlackTierError, OSError, ValueError) as exc:
        yield {"error": described(exc)}
