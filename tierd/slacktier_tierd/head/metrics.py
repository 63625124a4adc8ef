# SPDX-License-Identifier: Apache-2.0
"""Prometheus exposition of the head: made at the scrape from what the store knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from slacktier import __version__, metrics
from slacktier.api import BindingStatus, Kind, PoolStatus, ReplicaStatus
from slacktier.metrics import Metric, MetricKind
from slacktier_tierd.head.service import Service

Family = CounterMetricFamily | GaugeMetricFamily


class OpenCount(Protocol):
    open: int


class HeadMetrics:
    """What is counted outside the store. tick: seconds of the last reconcile, and how many there were."""

    def __init__(
        self, *, tick: Callable[[], tuple[float, int]], restarts: Callable[[], int],
        refusals: Callable[[], dict[str, int]],
    ) -> None:  # fmt: skip
        self.tick, self.restarts, self.refusals = tick, restarts, refusals
        self.watches: OpenCount | None = None
        self.started_s = time.time()

    def text(self, service: Service) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collected(self, service))
        return generate_latest(registry)


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    return kind(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)


class _Collected(Collector):
    def __init__(self, head: HeadMetrics, service: Service) -> None:
        self._head, self._service = head, service

    def collect(self) -> Iterator[Any]:
        yield self._one(metrics.BUILD_INFO, ("tierd", __version__), 1)
        yield from self._resources()
        yield from self._replicas()
        yield from self._members()
        yield self._bindings()
        seconds, count = self._head.tick()
        yield self._one(metrics.RECONCILE_SECONDS, (), seconds)
        yield self._one(metrics.RECONCILES, (), count)
        yield self._one(metrics.RAY_RESTARTS, (), self._head.restarts())
        yield self._one(metrics.WATCHES, (), self._head.watches.open if self._head.watches else 0)
        refusals = _family(metrics.API_REFUSALS)
        for code, number in sorted(self._head.refusals().items()):
            refusals.add_metric((code,), number)
        yield refusals

    @staticmethod
    def _one(metric: Metric, labels: tuple[str, ...], value: float) -> Family:
        family = _family(metric)
        family.add_metric(labels, value)
        return family

    def _resources(self) -> Iterator[Family]:
        family = _family(metrics.RESOURCES)
        for kind in Kind:
            family.add_metric((kind.value,), self._service.store.count(kind))
        yield family

    def _replicas(self) -> Iterator[Family]:
        states: dict[tuple[str, str], int] = {}
        staged, restarts = 0, _family(metrics.REPLICA_RESTARTS)
        for entry in self._service.store.all(Kind.REPLICAS):
            status = entry.status
            if isinstance(status, ReplicaStatus):
                key = (status.tier.value if status.tier else "", status.state.value)
                states[key] = states.get(key, 0) + 1
                staged += status.staged_bytes
                restarts.add_metric((entry.name,), status.restarts)
        family = _family(metrics.REPLICAS)
        for labels, number in sorted(states.items()):
            family.add_metric(labels, number)
        yield from (family, restarts, self._one(metrics.STAGED_BYTES, (), staged))

    def _members(self) -> Iterator[Family]:
        free, ready = _family(metrics.MEMBER_FREE_BYTES), _family(metrics.MEMBER_READY)
        for entry in self._service.store.all(Kind.POOLS):
            members = entry.status.members if isinstance(entry.status, PoolStatus) else ()
            for member in members:
                free.add_metric((entry.name, member.name), member.free_bytes)
                ready.add_metric((entry.name, member.name), member.state == "ready")
        yield from (free, ready)

    def _bindings(self) -> Family:
        family = _family(metrics.BINDINGS_IN_FORCE)
        in_force = sum(
            isinstance(entry.status, BindingStatus)
            and entry.status.access_version == entry.status.in_force_version != 0
            for entry in self._service.store.all(Kind.BINDINGS)
        )
        family.add_metric((), in_force)
        return family
