# SPDX-License-Identifier: Apache-2.0
"""Prometheus names, labels and buckets of all parts. Base units: seconds, bytes, counts. The standard library only.

Buckets resolve 0.05 to 20 ms: Prometheus' default buckets start at 5 ms and would hide a window of 0.27 ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    name     as scraped; a counter's ends in _total
    labels   label names in order; `engine` comes first where an engine exposes the metric
    buckets  upper bounds in the metric's unit, without +Inf; histograms only
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


READ_BUCKETS: Final = (
    0.00005, 0.0001, 0.00015, 0.0002, 0.00025, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.004,
    0.005, 0.0075, 0.01, 0.015, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0,
)  # fmt: skip
STEP_BUCKETS: Final = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.0225, 0.025, 0.0275, 0.03, 0.0325, 0.035, 0.04,
    0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
REQUEST_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)

_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_ENGINE: Final = ("engine",)
_LAYER: Final = ("engine", "layer")
_LAYER_TIER: Final = ("engine", "layer", "tier", "rank")

BUILD_INFO: Final = Metric("slacktier_build_info", _G, "Version of this build; always 1.", ("engine", "version"))
ENGINE_INFO: Final = Metric(
    "slacktier_engine_info", _G, "What kind of engine this is; always 1.",
    ("engine", "model", "profile", "rank", "tp"),
)  # fmt: skip
IO_BACKEND_INFO: Final = Metric(
    "slacktier_io_backend_info", _G, "I/O interface in use: uring or posix; always 1.", ("engine", "backend")
)
READY: Final = Metric("slacktier_ready", _G, "1 if the last lookup through the real path worked.", _ENGINE)

READ_SECONDS: Final = Metric(
    "slacktier_read_seconds", _H, "Decode: from the step's start until the layer's last row had arrived.",
    _LAYER_TIER, READ_BUCKETS,
)  # fmt: skip
PREFILL_READ_SECONDS: Final = Metric(
    "slacktier_prefill_read_seconds", _H, "Prefill: from the step's start until the layer's last row had arrived.",
    _LAYER_TIER, READ_BUCKETS,
)  # fmt: skip
EXPOSED_STALL_SECONDS: Final = Metric(
    "slacktier_exposed_stall_seconds", _H, "Decode: how long a step waited past the layer's window.",
    _LAYER, READ_BUCKETS,
)  # fmt: skip
WINDOW_SECONDS: Final = Metric(
    "slacktier_window_seconds", _G, "The layer's prefetch window in the last decode step.", _LAYER
)
STEP_SECONDS: Final = Metric(
    "slacktier_step_seconds", _H, "Time of one step, stalls included.", ("engine", "phase"), STEP_BUCKETS
)
LOOKUPS: Final = Metric("slacktier_lookups_total", _C, "Row ids asked for, repeats and padding included.", _LAYER)
BYTES_READ: Final = Metric("slacktier_bytes_read_total", _C, "Bytes of the pages read from the tier.", _LAYER)
PAGES_READ: Final = Metric("slacktier_pages_read_total", _C, "4 KiB pages read from the tier.", _LAYER)
CACHE_HITS: Final = Metric("slacktier_cache_hits_total", _C, "Rows that were in the cache at step start.", _LAYER)
CACHE_REPEATS: Final = Metric("slacktier_cache_repeats_total", _C, "Rows asked for again in the same step.", _LAYER)
CACHE_MISSES: Final = Metric("slacktier_cache_misses_total", _C, "Rows that had to be read.", _LAYER)
CACHE_ROWS: Final = Metric("slacktier_cache_rows", _G, "Rows that the cache has room for.", _LAYER)
ROWS_CHECKED: Final = Metric(
    "slacktier_rows_checked_total", _C, "Rows compared with the test pattern or the checkpoint.", _LAYER
)
ROWS_MISMATCHED: Final = Metric("slacktier_rows_mismatched_total", _C, "Rows that differed from it.", _LAYER)
ROWS_SKIPPED: Final = Metric("slacktier_rows_skipped_total", _C, "Lossy: rows outside the seen-set, zero.", _LAYER)
CACHE_EVICTIONS: Final = Metric("slacktier_cache_evictions_total", _C, "Rows that made room for others.", _LAYER)
READ_RETRIES: Final = Metric("slacktier_read_retries_total", _C, "Page reads that were tried again.", _LAYER)
HOST_CACHE_HITS: Final = Metric(
    "slacktier_host_cache_hits_total", _C, "Misses that the second level in host memory answered.", _LAYER
)
FALLBACK: Final = Metric(
    "slacktier_fallback_total", _C, "Rows that came from another replica than the layer's first.", _LAYER
)
BAD_RECORDS: Final = Metric("slacktier_bad_records_total", _C, "Records with a wrong tag or checksum.", _LAYER)
LOOKUP_FAILURES: Final = Metric(
    "slacktier_lookup_failures_total", _C, "Lookups that no replica could answer.", ("engine", "layer", "reason")
)
REQUESTS_ENDED: Final = Metric(
    "slacktier_requests_ended_total", _C, "Requests ended with an error because a step's rows could not be read.",
    _ENGINE,
)  # fmt: skip
CACHE_DROPS: Final = Metric("slacktier_cache_drops_total", _C, "Caches emptied for a weight update.", _ENGINE)
BINDINGS: Final = Metric("slacktier_bindings_total", _C, "Changes at run time by outcome.", ("engine", "outcome"))

REQUESTS: Final = Metric("slacktier_requests_total", _C, "Requests by outcome.", ("engine", "outcome"))
REQUESTS_RUNNING: Final = Metric("slacktier_requests_running", _G, "Sequences in prefill or decode.", _ENGINE)
REQUESTS_WAITING: Final = Metric("slacktier_requests_waiting", _G, "Sequences in the queue.", _ENGINE)
PROMPT_TOKENS: Final = Metric("slacktier_prompt_tokens_total", _C, "Prompt tokens of admitted requests.", _ENGINE)
CACHED_TOKENS: Final = Metric(
    "slacktier_cached_prompt_tokens_total", _C, "Prompt tokens that the prefix cache held already.", _ENGINE
)
GENERATION_TOKENS: Final = Metric("slacktier_generation_tokens_total", _C, "Tokens generated.", _ENGINE)
TTFT_SECONDS: Final = Metric(
    "slacktier_time_to_first_token_seconds", _H, "From the request's arrival to its first token.",
    _ENGINE, REQUEST_BUCKETS,
)  # fmt: skip
TPOT_SECONDS: Final = Metric(
    "slacktier_time_per_output_token_seconds", _H, "Per request: (last token - first token) / (tokens - 1).",
    _ENGINE, STEP_BUCKETS,
)  # fmt: skip

# tierd's head
RESOURCES: Final = Metric("slacktier_resources", _G, "Resources of the API.", ("kind",))
REPLICAS: Final = Metric("slacktier_replicas", _G, "Replicas by tier and state.", ("tier", "state"))
REPLICA_RESTARTS: Final = Metric(
    "slacktier_replica_restarts_total", _C, "Stagings and memory nodes that had to begin again.", ("replica",)
)
STAGED_BYTES: Final = Metric("slacktier_staged_bytes", _G, "Bytes of all replicas that are durable or in memory.")
MEMBER_FREE_BYTES: Final = Metric("slacktier_member_free_bytes", _G, "Room for tables.", ("pool", "member"))
MEMBER_READY: Final = Metric("slacktier_member_ready", _G, "1 if the place can be used.", ("pool", "member"))
BINDINGS_IN_FORCE: Final = Metric(
    "slacktier_bindings_in_force", _G, "Bindings whose instance reports that it reads by the newest access."
)
RECONCILE_SECONDS: Final = Metric("slacktier_reconcile_seconds", _G, "Duration of the last reconcile.")
RECONCILES: Final = Metric("slacktier_reconciles_total", _C, "Reconciles since the start.")
RAY_RESTARTS: Final = Metric("slacktier_ray_restarts_total", _C, "How often Ray's driver had to be started again.")
WATCHES: Final = Metric("slacktier_watches", _G, "Open watches and waiting lists.")
API_REFUSALS: Final = Metric("slacktier_api_refusals_total", _C, "Calls refused before they did anything.", ("code",))
