# SPDX-License-Identifier: Apache-2.0
"""What is counted: percentiles, histograms, and the metrics page as Prometheus reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_support import ScriptedCore, VirtualClock, scripted_engine, submission, write_tables
from prometheus_client.parser import text_string_to_metric_families

from slacktier import metrics
from slacktier.histogram import Histogram
from slacktier.metrics import Metric, MetricKind
from slacktier_emulated.report import SAMPLES_KEPT, Samples
from slacktier_emulated.server_metrics import Outcome, ServerMetrics, exposition

ALL = [value for value in vars(metrics).values() if isinstance(value, Metric)]


def test_samples_keep_exact_means_and_percentiles_of_the_newest() -> None:
    samples, values = Samples(), np.arange(SAMPLES_KEPT + 1000, dtype=np.float64)
    for value in values:
        samples.add(value)
    found = samples.summary(50, 99)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["p50"] == pytest.approx(np.percentile(values[-SAMPLES_KEPT:], 50), abs=0.5)
    assert found["max"] == values[-1]


def test_no_sample_is_none_and_not_zero() -> None:
    assert Samples().summary(50) == {"mean": None, "p50": None, "max": None}


def test_histogram_puts_a_bound_into_its_own_bucket() -> None:
    histogram = Histogram((0.001, 0.002))
    for value in (0.0005, 0.001, 0.0015, 0.5):
        histogram.add(value)
    assert histogram.counts == [2, 1, 1]


def test_names_are_ours_in_base_units_and_buckets_resolve_the_windows() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL) > 20
    for metric in ALL:
        assert metric.name.startswith("slacktier_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert bool(metric.buckets) == (metric.kind is MetricKind.HISTOGRAM)
        assert list(metric.buckets) == sorted(set(metric.buckets))
    for bound_ms in (0.05, 0.25, 0.3, 1, 10, 20):
        assert bound_ms / 1000 in metrics.READ_BUCKETS


def test_page_parses_every_sample_says_emulated_and_counts_what_happened(tmp_path: Path) -> None:
    core = ScriptedCore(VirtualClock(), arrivals_us=[350.0, 100.0])
    engine = scripted_engine(core, write_tables(tmp_path))
    engine.warm_up()
    engine.submit(submission(1, prompt=10, answer=5))
    while (prepared := engine.prepare()) is not None:
        record = engine.begin(prepared, lambda: None)
        engine.scheduler.complete(prepared.batch)
        engine.finish(prepared, record)
    counted = ServerMetrics()
    counted.finished(Outcome.COMPLETED, arrived_ns=0, first_ns=10**8, last_ns=10**9, tokens=5, prompt=10, cached=3)
    answer = {"status": engine.status(), "metrics": engine.metrics.as_json(), "core": engine.core_stats()}
    page = exposition(counted, answer, model="tiny-emulated", waiting=0).decode()
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    known = {metric.name: metric for metric in ALL}
    for name, labels in samples:
        base = next(
            base for base in (name, *(name.removesuffix(s) for s in ("_bucket", "_sum", "_count"))) if base in known
        )
        assert dict(labels)["engine"] == "emulated"
        assert {key for key, _ in labels} - {"le"} == set(known[base].labels)

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted({"engine": "emulated", **labels}.items()))]

    assert value("slacktier_ready") == 1
    assert value("slacktier_rows_checked_total", layer="14") == 14 * 24
    assert value("slacktier_step_seconds_count", phase="decode") == 4
    assert value("slacktier_exposed_stall_seconds_sum", layer="1") == pytest.approx(4 * 0.00025)
    assert value("slacktier_exposed_stall_seconds_bucket", layer="1", le="0.0002") == 0
    assert value("slacktier_exposed_stall_seconds_bucket", layer="1", le="0.0003") == 4
    assert value("slacktier_time_per_output_token_seconds_sum") == pytest.approx(0.9 / 4)
    assert value("slacktier_requests_total", outcome="completed") == 1


def test_page_without_an_engine_is_not_ready() -> None:
    page = exposition(ServerMetrics(), None, model="tiny-emulated", waiting=2).decode()
    assert 'slacktier_ready{engine="emulated"} 0.0' in page
    assert 'slacktier_requests_waiting{engine="emulated"} 2.0' in page
