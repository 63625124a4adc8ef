# SPDX-License-Identifier: Apache-2.0
"""The operator's process: kopf watches, the reconciler works. Start it with `kopf run -m slacktier_operator.main`.

Only raw watches are used: kopf then writes neither finalizers nor annotations, so nothing of ours keeps an object or a
namespace from going, also when the operator is gone first.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import kopf

from slacktier.crd import RESOURCES
from slacktier.crd_binding import TableBinding
from slacktier.crd_model import GROUP, PLACEMENT_LABEL
from slacktier.errors import ConfigError
from slacktier_operator import placements, pods, pools, tables
from slacktier_operator.context import Context
from slacktier_operator.kube import Kube
from slacktier_operator.reconciler import WORKERS, Reconciler
from slacktier_operator.settings import OperatorSettings
from slacktier_operator.store import Store, key_of
from slacktier_operator.tierd_client import TierdClient
from slacktier_operator.tierd_state import TierdState
from slacktier_operator.work_queue import WorkQueue

HANDLERS = {
    tables.KIND: tables.reconcile,
    pools.KIND: pools.reconcile,
    placements.KIND: placements.reconcile,
    pods.POD: pods.reconcile_pod,
    TableBinding.kind: pods.reconcile_binding,
}


class Operator:
    """Everything that runs, put together; kopf's handlers below only hand events on."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.store = Store()
        self.client = TierdClient(settings)
        state = TierdState(self.client, lambda kind, name: self.reconciler.tierd_changed(kind, name))
        self.context = Context(settings, Kube(), self.client, state, self.store, WorkQueue())
        self.reconciler = Reconciler(self.context, HANDLERS)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run())]

    async def _run(self) -> None:
        await self.reconciler.first_look()
        self._tasks.append(asyncio.create_task(self.context.state.follow()))
        # Until tierd has answered, every status would say that it cannot be reached.
        await self.context.state.asked.wait()
        jobs = [self.reconciler.resync(self.context.settings.resync_s)]
        jobs += [self.reconciler.work() for _ in range(WORKERS)]
        self._tasks += [asyncio.create_task(job) for job in jobs]

    async def stop(self) -> None:
        self.context.queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    def event(self, kind: str, body: dict[str, Any], deleted: bool) -> None:
        known = self.store.get(kind, key_of(body))
        if deleted:
            self.store.remove(kind, key_of(body))
        elif not self.store.put(kind, body):
            return
        # A node says that it is alive every few seconds; only its labels matter here.
        if kind == "Node" and known and not deleted and _labels(known) == _labels(body):
            return
        self.reconciler.changed(kind, body)


def _labels(body: Mapping[str, Any]) -> Any:
    return body["metadata"].get("labels")


class Backoffs:
    """Seconds between tries of a call to the API server, without an end.

    kopf's own list ends after a minute, and with it the operator, if the server answers errors for so long, as it does
    without its etcd.
    """

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1.0, 2.0, 3.0)
        while True:
            yield 5.0


_operator: Operator | None = None


def _running() -> Operator:
    if _operator is None:
        raise kopf.TemporaryError("the operator is starting", delay=1)
    return _operator


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
    """kopf's settings: quiet events, watches that end by themselves, no peering."""
    global _operator
    settings.posting.enabled = False  # Events are written where something is decided
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.networking.error_backoffs = Backoffs()
    settings.persistence.finalizer = f"{GROUP}/unused"
    settings.scanning.disabled = True
    try:
        _operator = Operator(OperatorSettings.from_environment(os.environ))
    except ConfigError as exc:
        raise kopf.PermanentError(str(exc)) from exc
    _operator.start()


@kopf.on.cleanup()
async def stop(**_: Any) -> None:
    await _running().stop()


@kopf.on.probe(id="queue")
def queue_length(**_: Any) -> int:
    """Objects waiting to be looked at, in the liveness answer."""
    return len(_running().context.queue)


@kopf.on.probe(id="calls")
def calls(**_: Any) -> dict[str, int]:
    """Calls to the Kubernetes API since the start by verb and kind, watches aside, in the liveness answer."""
    return {f"{verb} {kind}": count for (verb, kind), count in sorted(_running().context.kube.calls.items())}


@kopf.on.probe(id="tierd")
def tierd(**_: Any) -> str:
    """Whether tierd's head can be reached, in the liveness answer."""
    state = _running().context.state
    return "connected" if state.connected else state.why_not


def _watch(kind: str, body: kopf.Body, kind_of_event: str | None) -> None:
    _running().event(kind, dict(body), kind_of_event == "DELETED")


for _resource in RESOURCES:

    @kopf.on.event(GROUP, _resource.plural, id=_resource.plural)
    def _custom(body: kopf.Body, type: str | None, kind: str = _resource.kind, **_: Any) -> None:  # noqa: A002
        _watch(kind, body, type)


@kopf.on.event("", "v1", "pods", labels={PLACEMENT_LABEL: kopf.PRESENT})
def pod_event(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
    """Serving pods only; kopf watches all pods and hands these on."""
    _watch("Pod", body, type)


@kopf.on.event("", "v1", "nodes")
def node_event(body: kopf.Body, type: str | None, **_: Any) -> None:  # noqa: A002
    _watch("Node", body, type)
