# SPDX-License-Identifier: Apache-2.0
"""Aggregates since the last reset: what /slacktier/report tells and what the metrics count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier import metrics
from slacktier.histogram import Histogram
from slacktier_emulated.scheduler import Phase
from slacktier_emulated.step import LayerRecord, LookupFailedError, StepRecord

# Percentiles cover this many of the newest steps; means and counts cover all since the reset.
SAMPLES_KEPT: Final = 65_536


class Samples:
    """A series of numbers: exact count and mean, percentiles over the newest SAMPLES_KEPT."""

    def __init__(self) -> None:
        self._ring: npt.NDArray[np.float32] = np.empty(256, np.float32)
        self.count = 0
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        if self.count == len(self._ring) < SAMPLES_KEPT:
            self._ring = np.concatenate([self._ring, np.empty_like(self._ring)])
        self._ring[self.count % len(self._ring)] = value
        self.count += 1
        self.total += value
        self.largest = max(self.largest, value)

    def summary(self, *percentiles: int) -> dict[str, float | None]:
        """Mean, the percentiles named and the maximum; None where there is no sample."""
        if not self.count:
            return {"mean": None, **{f"p{p}": None for p in percentiles}, "max": None}
        kept = self._ring[: min(self.count, len(self._ring))]
        found = np.percentile(kept, percentiles)
        named = {f"p{p}": round(float(value), 4) for p, value in zip(percentiles, found, strict=True)}
        return {"mean": round(self.total / self.count, 4), **named, "max": round(self.largest, 4)}


class LayerTotals:
    """One layer in one phase."""

    def __init__(self) -> None:
        self.window_ms, self.read_ms, self.stall_ms = Samples(), Samples(), Samples()
        self.owned = self.hits = self.repeats = self.misses = self.pages = self.checked = 0

    def add(self, record: LayerRecord) -> None:
        self.window_ms.add(record.window_us / 1000)
        self.read_ms.add(record.read_us / 1000)
        self.stall_ms.add(record.stall_us / 1000)
        self.owned += record.owned
        self.hits += record.hits
        self.repeats += record.repeats
        self.misses += record.misses
        self.pages += record.pages
        self.checked += record.checked

    def as_json(self) -> dict[str, Any]:
        steps = self.read_ms.count
        return {
            "window_ms": self.window_ms.summary()["mean"],
            "read_ms": self.read_ms.summary(50, 99),
            "stall_ms": self.stall_ms.summary(50, 99),
            "lookups": self.owned,
            "hits": self.hits,
            "repeats": self.repeats,
            "misses": self.misses,
            "hit_rate": round((self.hits + self.repeats) / self.owned, 6) if self.owned else None,
            "pages": self.pages,
            "pages_per_step": round(self.pages / steps, 2) if steps else None,
        }


class PhaseTotals:
    """All steps of one phase."""

    def __init__(self, layer_count: int) -> None:
        self.step_ms, self.overrun_ms, self.sequences = Samples(), Samples(), Samples()
        self.tokens = 0
        self.layers = [LayerTotals() for _ in range(layer_count)]

    def as_json(self, layer_ids: Sequence[int], tiers: Sequence[str]) -> dict[str, Any]:
        return {
            "steps": self.step_ms.count,
            "tokens": self.tokens,
            "sequences": self.sequences.summary(),
            "step_ms": self.step_ms.summary(50, 95, 99),
            "overrun_ms": self.overrun_ms.summary(50, 99),
            "layers": [
                {"layer_id": layer_id, "tier": tier, **totals.as_json()}
                for layer_id, tier, totals in zip(layer_ids, tiers, self.layers, strict=True)
            ],
        }


class Aggregates:
    """Everything counted since the last reset, decode and prefill apart."""

    def __init__(self, layer_ids: Sequence[int], *, first_step: int, now_ns: int) -> None:
        self.layer_ids = tuple(layer_ids)
        self.first_step = first_step
        self.since_ns = now_ns
        self.phases = {phase: PhaseTotals(len(layer_ids)) for phase in Phase}
        self.failed_steps = 0
        self.mismatched = 0
        self.lost_ns = 0

    def add(
        self,
        phase: Phase,
        record: StepRecord,
        *,
        sequences: int,
        tokens: int,
        step_ns: int,
        overrun_ns: int,
        lost_ns: int,
    ) -> None:
        totals = self.phases[phase]
        totals.step_ms.add(step_ns / 1e6)
        totals.overrun_ms.add(max(0, overrun_ns) / 1e6)
        totals.sequences.add(sequences)
        self.lost_ns += lost_ns
        totals.tokens += tokens
        for layer, layer_record in zip(totals.layers, record.layers, strict=True):
            layer.add(layer_record)

    def add_failure(self, failure: LookupFailedError) -> None:
        self.failed_steps += 1
        self.mismatched += sum(failure.mismatched.values())

    def as_json(self, tiers: Sequence[str], *, end_step: int, now_ns: int) -> dict[str, Any]:
        """Decode at the top level, prefill under its own name; rows are counted over both."""
        decode = self.phases[Phase.DECODE].as_json(self.layer_ids, tiers)
        prefill = self.phases[Phase.PREFILL].as_json(self.layer_ids, tiers)
        checked = sum(layer.checked for totals in self.phases.values() for layer in totals.layers)
        return {
            "engine": "emulated",
            "seconds": round((now_ns - self.since_ns) / 1e9, 3),
            "first_step": self.first_step,
            "end_step": end_step,
            "rows_checked": checked + self.mismatched,
            "mismatched_rows": self.mismatched,
            "failed_steps": self.failed_steps,
            "lost_ms": round(self.lost_ns / 1e6, 3),
            **decode,
            "prefill": prefill,
        }


class EngineMetrics:
    """Counters and histograms since the engine started, in the shape that the metrics endpoint reads."""

    def __init__(self, layer_count: int) -> None:
        self.steps = {phase: Histogram(metrics.STEP_BUCKETS) for phase in Phase}
        self.layers = [LayerMetrics() for _ in range(layer_count)]
        self.failures: dict[tuple[int, str], int] = {}

    def add(self, phase: Phase, record: StepRecord, step_ns: int, tiers: Sequence[str]) -> None:
        self.steps[phase].add(step_ns / 1e9)
        for layer, layer_record, tier in zip(self.layers, record.layers, tiers, strict=True):
            layer.add(phase, layer_record, tier)

    def add_failure(self, failure: LookupFailedError, layer_ids: Sequence[int]) -> None:
        for item in failure.reasons.items():
            self.failures[item] = self.failures.get(item, 0) + 1
        for layer_id, rows in failure.mismatched.items():
            self.layers[layer_ids.index(layer_id)].mismatched += rows

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": {phase.name.lower(): histogram.as_json() for phase, histogram in self.steps.items()},
            "layers": [layer.as_json() for layer in self.layers],
            "failures": [[layer_id, why, count] for (layer_id, why), count in self.failures.items()],
        }


class LayerMetrics:
    """One layer since the start; reads are kept by tier, since a control call may change it."""

    def __init__(self) -> None:
        self.reads: dict[tuple[Phase, str], Histogram] = {}
        self.stalls = Histogram(metrics.READ_BUCKETS)
        self.window_s = 0.0
        self.pages = self.hits = self.repeats = self.misses = self.checked = self.mismatched = 0

    def add(self, phase: Phase, record: LayerRecord, tier: str) -> None:
        self.reads.setdefault((phase, tier), Histogram(metrics.READ_BUCKETS)).add(record.read_us / 1e6)
        if phase is Phase.DECODE:
            self.stalls.add(record.stall_us / 1e6)
            self.window_s = record.window_us / 1e6
        self.pages += record.pages
        self.hits += record.hits
        self.repeats += record.repeats
        self.misses += record.misses
        self.checked += record.checked

    def as_json(self) -> dict[str, Any]:
        return {
            "reads": [[phase.name.lower(), tier, h.as_json()] for (phase, tier), h in self.reads.items()],
            "stalls": self.stalls.as_json(),
            "window_s": self.window_s,
            "pages": self.pages,
            "hits": self.hits,
            "repeats": self.repeats,
            "misses": self.misses,
            "checked": self.checked,
            "mismatched": self.mismatched,
        }
