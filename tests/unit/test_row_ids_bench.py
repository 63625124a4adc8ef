# SPDX-License-Identifier: Apache-2.0
"""The hashing benchmark runs small and reports what it claims to."""

from __future__ import annotations

from slacktier_rowids.bench import run


def test_bench_reports_positive_figures_for_all_ids() -> None:
    found = run(tokens=64, sequences=4, repeats=2)
    assert found["ids_per_token"] == 48
    assert found["tokens_per_s_per_core"]["best"] >= found["tokens_per_s_per_core"]["median"] > 0
    assert 0 < found["step_us"]["p50"] <= found["step_us"]["p99"]
