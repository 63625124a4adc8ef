# SPDX-License-Identifier: Apache-2.0
"""The step path's CPU side, driven without a GPU."""

from __future__ import annotations

import os

import pytest

from slacktier.errors import ConfigError
from slacktier_native import bench_step_path
from slacktier_native.placement import threads_on


def test_every_step_is_served_and_its_instants_follow_each_other() -> None:
    report = bench_step_path.run(tokens=2, cache_rows=400, steps=5, gap_ms=0.0, readers=1, row_count=3000)
    assert len(report["cells"]) == 2
    for cell in report["cells"]:
        assert 0 < cell["first_read_us"]["p50"] <= cell["resolved_us"]["p50"] <= cell["ready_us"]["p50"]


def test_threads_start_where_they_may_and_the_caller_moves_back() -> None:
    before = os.sched_getaffinity(0)
    with threads_on([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before


def test_processors_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match="this process may use"), threads_on([4095]):
        raise AssertionError("not reached")
