# SPDX-License-Identifier: Apache-2.0
"""Prometheus exposition: what the server counts, and what the engine counted when it was asked at the scrape."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Any, Final

from slacktier import __version__, metrics
from slacktier.histogram import Histogram
from slacktier_binding.families import Families

ENGINE: Final = "emulated"


class Outcome(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # bad input
    OVERLOADED = "overloaded"  # queue full, or not serving


class ServerMetrics:
    """Counted by the web server itself."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter(dict.fromkeys(Outcome, 0))
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.ttft = Histogram(metrics.REQUEST_BUCKETS)
        self.tpot = Histogram(metrics.STEP_BUCKETS)

    def finished(
        self, outcome: Outcome, *, arrived_ns: int, first_ns: int, last_ns: int, tokens: int, prompt: int, cached: int
    ) -> None:
        """One request that the engine had accepted."""
        self.outcomes[outcome] += 1
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        self.generated_tokens += tokens
        if tokens:
            self.ttft.add((first_ns - arrived_ns) / 1e9)
        if tokens > 1:
            self.tpot.add((last_ns - first_ns) / 1e9 / (tokens - 1))


def exposition(server: ServerMetrics, engine: dict[str, Any] | None, *, model: str, waiting: int) -> bytes:
    """The metrics page; `engine` is its answer to the call `metrics`, None where it is gone or still starting."""
    families = Families(ENGINE)
    families.value(metrics.BUILD_INFO, 1, __version__)
    for outcome, number in server.outcomes.items():
        families.value(metrics.REQUESTS, number, outcome)
    families.value(metrics.PROMPT_TOKENS, server.prompt_tokens)
    families.value(metrics.CACHED_TOKENS, server.cached_tokens)
    families.value(metrics.GENERATION_TOKENS, server.generated_tokens)
    families.histogram(metrics.TTFT_SECONDS, server.ttft.counts, server.ttft.total)
    families.histogram(metrics.TPOT_SECONDS, server.tpot.counts, server.tpot.total)
    if engine is None:
        families.value(metrics.READY, 0)
        families.value(metrics.REQUESTS_WAITING, waiting)
    else:
        _engine_families(families, engine["status"], engine["metrics"], model)
        _core_families(families, engine["status"], engine["core"])
    return families.page()


def _engine_families(families: Families, status: dict[str, Any], counted: dict[str, Any], model: str) -> None:
    families.value(metrics.READY, int(status["ready"]))
    families.value(metrics.ENGINE_INFO, 1, model, status["profile"], status["rank"], status["tp"])
    families.value(metrics.IO_BACKEND_INFO, 1, status["backend"])
    families.value(metrics.REQUESTS_RUNNING, status["requests"]["running"])
    families.value(metrics.REQUESTS_WAITING, status["requests"]["waiting"])
    for phase, histogram in counted["steps"].items():
        families.histogram(metrics.STEP_SECONDS, histogram["counts"], histogram["sum"], phase)
    for layer_id, why, number in counted["failures"]:
        families.value(metrics.LOOKUP_FAILURES, number, layer_id, why)
    for layer, totals in zip(status["layers"], counted["layers"], strict=True):
        _layer_families(families, layer, totals, status["rank"])


def _core_families(families: Families, status: dict[str, Any], totals: list[dict[str, int]]) -> None:
    for layer, counted in zip(status["layers"], totals, strict=True):
        families.value(metrics.CACHE_EVICTIONS, counted["evictions"], layer["layer_id"])
        families.value(metrics.READ_RETRIES, counted["retries"], layer["layer_id"])
        families.value(metrics.BAD_RECORDS, counted["bad_records"], layer["layer_id"])
        families.value(metrics.HOST_CACHE_HITS, counted["host_hits"], layer["layer_id"])
        families.value(metrics.FALLBACK, counted["fallback_rows"], layer["layer_id"])


def _layer_families(families: Families, layer: dict[str, Any], totals: dict[str, Any], rank: int) -> None:
    layer_id = layer["layer_id"]
    for phase, tier, histogram in totals["reads"]:
        metric = metrics.READ_SECONDS if phase == "decode" else metrics.PREFILL_READ_SECONDS
        families.histogram(metric, histogram["counts"], histogram["sum"], layer_id, tier, rank)
    families.histogram(metrics.EXPOSED_STALL_SECONDS, totals["stalls"]["counts"], totals["stalls"]["sum"], layer_id)
    for metric, value in (
        (metrics.WINDOW_SECONDS, totals["window_s"]),
        (metrics.PAGES_READ, totals["pages"]),
        (metrics.CACHE_HITS, totals["hits"]),
        (metrics.CACHE_REPEATS, totals["repeats"]),
        (metrics.CACHE_MISSES, totals["misses"]),
        (metrics.CACHE_ROWS, layer["cache_rows"]),
        (metrics.ROWS_CHECKED, totals["checked"]),
        (metrics.ROWS_MISMATCHED, totals["mismatched"]),
    ):
        families.value(metric, value, layer_id)
