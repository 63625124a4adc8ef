# SPDX-License-Identifier: Apache-2.0
"""An instance's metrics page in Prometheus' text format, from the metrics that the contracts name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from slacktier.metrics import Metric, MetricKind

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Families(Collector):
    """Families by name; every sample carries engine="..." first, then the metric's other labels in order."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._values: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}

    def value(self, metric: Metric, value: float, *labels: object) -> None:
        """One sample of a counter or a gauge."""
        if metric.name not in self._values:
            make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            self._values[metric.name] = make(metric.name, metric.help, labels=metric.labels)
        self._values[metric.name].add_metric([self._engine, *map(str, labels)], value)

    def histogram(self, metric: Metric, counts: Sequence[int], total: float, *labels: object) -> None:
        """One histogram: counts per bucket, the last one +Inf, and the sum, as slacktier.histogram has them."""
        if metric.name not in self._histograms:
            self._histograms[metric.name] = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        cumulative, buckets = 0, []
        for bound, count in zip([*map(str, metric.buckets), "+Inf"], counts, strict=True):
            cumulative += count
            buckets.append((bound, float(cumulative)))
        self._histograms[metric.name].add_metric([self._engine, *map(str, labels)], buckets, total)

    def collect(self) -> Iterable[Family]:
        return [*self._values.values(), *self._histograms.values()]

    def page(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
