# SPDX-License-Identifier: Apache-2.0
"""What one rank counts beside the core: read times, exposed stalls, checked rows, failures.

Added to on a step's path: plain integers and lists, written by one thread and read by another: a scrape may see a step
half counted, never a wrong total afterwards.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields

from slacktier import metrics
from slacktier.histogram import Histogram
from slacktier_engine.step_path import Phase
from slacktier_native.core import LayerResult


def _read_times() -> dict[Phase, Histogram]:
    return {phase: Histogram(metrics.READ_BUCKETS) for phase in Phase}


@dataclass
class DecodeCounts:
    """Decode lookups of one layer, as a report to tierd has them; times are sums in microseconds."""

    steps: int = 0
    lookups: int = 0
    hits: int = 0
    repeats: int = 0
    misses: int = 0
    pages: int = 0
    retries: int = 0
    read_us: float = 0.0
    stall_us: float = 0.0

    def add(self, result: LayerResult) -> None:
        self.steps += 1
        self.lookups += result.owned
        self.hits += result.hits
        self.repeats += result.repeats
        self.misses += result.misses
        self.pages += result.pages
        self.retries += result.retries
        self.read_us += result.arrived_us
        self.stall_us += result.wait_us

    def since(self, before: DecodeCounts) -> DecodeCounts:
        return DecodeCounts(
            *(getattr(self, each.name) - getattr(before, each.name) for each in fields(DecodeCounts))
        )  # fmt: skip


@dataclass
class LayerCounts:
    """One layer of one rank."""

    reads: dict[Phase, Histogram] = field(default_factory=_read_times)
    stalls: Histogram = field(default_factory=lambda: Histogram(metrics.READ_BUCKETS))
    decode: DecodeCounts = field(default_factory=DecodeCounts)
    checked: int = 0
    mismatched: int = 0
    skipped: int = 0


class Counts:
    """Of all layers; the StepObserver of a step path."""

    def __init__(self) -> None:
        self.layers: defaultdict[int, LayerCounts] = defaultdict(LayerCounts)
        self.failures: Counter[tuple[int, str]] = Counter()
        self.ended_requests = 0
        self.bindings_applied = 0
        self.bindings_refused = 0
        self.cache_drops = 0

    def layer_done(self, layer_id: int, phase: Phase, result: LayerResult) -> None:
        layer = self.layers[layer_id]
        layer.reads[phase].add(result.arrived_us / 1e6)
        if phase is Phase.DECODE:
            layer.stalls.add(result.wait_us / 1e6)
            layer.decode.add(result)

    def failed(self, layer_id: int, error: BaseException) -> None:
        self.failures[layer_id, type(error).__name__] += 1
