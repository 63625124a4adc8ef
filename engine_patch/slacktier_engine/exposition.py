# SPDX-License-Identifier: Apache-2.0
"""One rank's metrics page for Prometheus. Each rank is a target of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from slacktier import __version__, metrics
from slacktier.histogram import Histogram
from slacktier.metrics import Metric
from slacktier.page import PAGE_BYTES
from slacktier_binding.families import Families
from slacktier_engine.step_path import Phase

if TYPE_CHECKING:
    from slacktier_engine.runtime import EngineTier

ENGINE: Final = "sglang"


def exposition(tier: EngineTier) -> bytes:
    """The metrics page in Prometheus' text format."""
    families = Families(ENGINE)
    families.value(metrics.BUILD_INFO, 1, __version__)
    families.value(metrics.READY, int(tier.is_ready))
    families.value(metrics.ENGINE_INFO, 1, tier.model, "", tier.rank, tier.tp)
    families.value(metrics.REQUESTS_ENDED, tier.counts.ended_requests)
    families.value(metrics.CACHE_DROPS, tier.counts.cache_drops)
    families.value(metrics.BINDINGS, tier.counts.bindings_applied, "applied")
    families.value(metrics.BINDINGS, tier.counts.bindings_refused, "refused")
    for (layer_id, reason), number in sorted(tier.counts.failures.items()):
        families.value(metrics.LOOKUP_FAILURES, number, layer_id, reason)
    for backend in sorted({group.core.backend for group in tier.groups}):
        families.value(metrics.IO_BACKEND_INFO, 1, backend)
    for layer_id, total, source in _layers(tier):
        _layer(families, tier, layer_id, total, source)
    return families.page()


def _layers(tier: EngineTier) -> Iterator[tuple[int, dict[str, int], str]]:
    for group in tier.groups:
        totals = group.core.stats()
        for index, layer_id in enumerate(group.layer_ids):
            yield layer_id, totals[layer_id], group.core.sources(index)[0].tier.value


def _layer(families: Families, tier: EngineTier, layer_id: int, total: dict[str, int], source: str) -> None:
    counted = tier.counts.layers[layer_id]
    _histogram(families, metrics.READ_SECONDS, counted.reads[Phase.DECODE], layer_id, source, tier.rank)
    _histogram(families, metrics.PREFILL_READ_SECONDS, counted.reads[Phase.PREFILL], layer_id, source, tier.rank)
    _histogram(families, metrics.EXPOSED_STALL_SECONDS, counted.stalls, layer_id)
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
        families.value(metric, value, layer_id)


def _histogram(families: Families, metric: Metric, counted: Histogram, *labels: object) -> None:
    families.histogram(metric, counted.counts, counted.total, *labels)
