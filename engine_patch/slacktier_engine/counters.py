# SPDX-License-Identifier: Apache-2.0
"""What one rank counts beside the core: read times, exposed stalls, checked rows, failures.

Added to on a step's path: plain integers and lists, written by one thread and read by another: a scrape may see a step
half counted, never a wrong total afterwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from slacktier import metrics
from slacktier.histogram import Histogram
from slacktier_engine.step_path import Phase
from slacktier_native.core import LayerResult


def _read_times() -> dict[Phase, Histogram]:
    return {phase: Histogram(metrics.READ_BUCKETS) for phase in Phase}


@dataclass
class LayerCounts:
    """One layer of one rank."""

    reads: dict[Phase, Histogram] = field(default_factory=_read_times)
    stalls: Histogram = field(default_factory=lambda: Histogram(metrics.READ_BUCKETS))
    checked: int = 0
    mismatched: int = 0
    skipped: int = 0


class Counts:
    """Of all layers; the StepObserver of a step path."""

    def __init__(self, layer_ids: tuple[int, ...]) -> None:
        self.layers = {layer_id: LayerCounts() for layer_id in layer_ids}
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

    def failed(self, layer_id: int, error: BaseException) -> None:
        self.failures[layer_id, type(error).__name__] += 1
