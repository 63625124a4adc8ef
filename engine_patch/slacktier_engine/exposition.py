# SPDX-License-Identifier: Apache-2.0
"""One rank's metrics page for Prometheus. Each rank is a target of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from slacktier import __version__, metrics
from slacktier.histogram import Histogram
from slacktier.metrics import Metric, MetricKind
from slacktier.page import PAGE_BYTES
from slacktier_engine.step_path import Phase

if TYPE_CHECKING:
    from slacktier_engine.runtime import EngineTier

ENGINE: Final = "sglang"
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class _Page(Collector):
    """Families by name; every sample carries engine="sglang" first."""

    def __init__(self) -> None:
        self._values: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._histograms: dict[str, HistogramMetricFamily] = {}

    def value(self, metric: Metric, value: float, *labels: object) -> None:
        if metric.name not in self._values:
            make = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
            self._values[metric.name] = make(metric.name, metric.help, labels=metric.labels)
        self._values[metric.name].add_metric([ENGINE, *map(str, labels)], value)

    def histogram(self, metric: Metric, histogram: Histogram, *labels: object) -> None:
        if metric.name not in self._histograms:
            self._histograms[metric.name] = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        total, buckets = 0, []
        for bound, count in zip([*map(str, metric.buckets), "+Inf"], histogram.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        self._histograms[metric.name].add_metric([ENGINE, *map(str, labels)], buckets, histogram.total)

    def collect(self) -> Iterable[Family]:
        return [*self._values.values(), *self._histograms.values()]


def exposition(tier: EngineTier) -> bytes:
    """The metrics page in Prometheus' text format."""
    page = _Page()
    page.value(metrics.BUILD_INFO, 1, __version__)
    page.value(metrics.READY, int(tier.is_ready))
    page.value(metrics.ENGINE_INFO, 1, tier.model, "", tier.rank, tier.tp)
    page.value(metrics.REQUESTS_ENDED, tier.counts.ended_requests)
    page.value(metrics.CACHE_DROPS, tier.counts.cache_drops)
    page.value(metrics.BINDINGS, tier.counts.bindings_applied, "applied")
    page.value(metrics.BINDINGS, tier.counts.bindings_refused, "refused")
    for (layer_id, reason), number in sorted(tier.counts.failures.items()):
        page.value(metrics.LOOKUP_FAILURES, number, layer_id, reason)
    for backend in sorted({group.core.backend for group in tier.groups}):
        page.value(metrics.IO_BACKEND_INFO, 1, backend)
    for layer_id, total, source in _layers(tier):
        _layer(page, tier, layer_id, total, source)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(page)
    return generate_latest(registry)


def _layers(tier: EngineTier) -> Iterator[tuple[int, dict[str, int], str]]:
    for group in tier.groups:
        totals = group.core.stats()
        for index, layer_id in enumerate(group.layer_ids):
            yield layer_id, totals[layer_id], group.core.sources(index)[0].tier.value


def _layer(page: _Page, tier: EngineTier, layer_id: int, total: dict[str, int], source: str) -> None:
    counted = tier.counts.layers[layer_id]
    page.histogram(metrics.READ_SECONDS, counted.reads[Phase.DECODE], layer_id, source, tier.rank)
    page.histogram(metrics.PREFILL_READ_SECONDS, counted.reads[Phase.PREFILL], layer_id, source, tier.rank)
    page.histogram(metrics.EXPOSED_STALL_SECONDS, counted.stalls, layer_id)
    for metric, value in (
        (metrics.LOOKUPS, total["lookups"]),
        (metrics.CACHE_HITS, total["hits"]),
        (metrics.CACHE_REPEATS, total["repeats"]),
        (metrics.CACHE_MISSES, total["misses"]),
        (metrics.CACHE_EVICTIONS, total["evictions"]),
        (metrics.CACHE_ROWS, total["cache_rows"]),
        (metrics.PAGES_READ, total["pages"]),
        (metrics.BYTES_READ, total["pages"] * PAGE_BYTES),
        (metrics.READ_RETRIES, total["retries"]),
        (metrics.BAD_RECORDS, total["bad_records"]),
        (metrics.FALLBACK, total["fallback_rows"]),
        (metrics.HOST_CACHE_HITS, total["host_hits"]),
        (metrics.ROWS_CHECKED, counted.checked),
        (metrics.ROWS_MISMATCHED, counted.mismatched),
        (metrics.ROWS_SKIPPED, counted.skipped),
    ):
        page.value(metric, value, layer_id)
