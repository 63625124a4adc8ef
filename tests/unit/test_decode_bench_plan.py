# SPDX-License-Identifier: Apache-2.0
"""What `bench decode` feeds and measures, as far as no GPU is needed."""

from __future__ import annotations

import numpy as np
import pytest

from slacktier.errors import ConfigError
from slacktier_engine.decode_bench.balance import imbalance
from slacktier_engine.decode_bench.cells import DEFAULT_CELLS, parse_cell
from slacktier_engine.decode_bench.drawn import draw_steps
from slacktier_engine.decode_bench.workload import BEFORE_START, TokenStream, build_workload, rounds


@pytest.fixture
def stream() -> TokenStream:
    """Two sessions: p p d d p d | p d d d, tokens numbered from 100."""
    decoded = np.array([0, 0, 1, 1, 0, 1, 0, 1, 1, 1], np.bool_)
    return TokenStream.of(np.arange(100, 110, dtype=np.uint32), np.array([0, 6, 10]), decoded)


def test_each_round_prefills_what_is_pending_and_decodes_one_token_per_slot(stream: TokenStream) -> None:
    seen = [([list(p) for p in prefilled], list(decoded)) for prefilled, decoded in rounds(stream, 1, seed=0)]
    first = [([[0, 1]], [2]), ([], [3]), ([[4]], [5])]
    second = [([[6]], [7]), ([], [8]), ([], [9])]
    assert seen in ([*first, *second], [*second, *first])


def test_side_by_side_sessions_decode_together(stream: TokenStream) -> None:
    decoded = [sorted(d) for _, d in rounds(stream, 2, seed=0)]
    assert decoded == [[2, 7], [3, 8], [5, 9]]


def test_windows_stop_at_the_session_start(stream: TokenStream) -> None:
    found = stream.windows(np.array([1, 5, 6, 8]), 4)
    assert found.tolist() == [
        [BEFORE_START, BEFORE_START, 100, 101],
        [102, 103, 104, 105],
        [BEFORE_START, BEFORE_START, BEFORE_START, 106],
        [BEFORE_START, 106, 107, 108],
    ]


def test_workload_measures_what_follows_the_warm_up(stream: TokenStream) -> None:
    work = build_workload(stream, slots=2, steps=2, warm_tokens=1, seed=0)
    assert sorted(work.warm) == [0, 1, 2, 6, 7]
    assert [sorted(step) for step in work.decode] == [[3, 8], [5, 9]]
    assert [list(p) for p in work.prefill] == [[], [4]]


def test_trace_that_ends_too_early_is_refused(stream: TokenStream) -> None:
    with pytest.raises(ConfigError, match="ends after 3 of 4 steps"):
        build_workload(stream, slots=2, steps=4, warm_tokens=0)


def test_default_cells_parse_and_window_defaults_to_the_papers() -> None:
    cells = [parse_cell(text) for text in DEFAULT_CELLS]
    assert parse_cell("agent:8:1:dram").window_ms == (0.27, 9.35)
    assert {cell.tokens for cell in cells} == {8, 32, 128, 256}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent:8:1", "3 parts"),
        ("agent:8:1:floppy", "source 'floppy'"),
        ("agent:eight:1:dram", "eight"),
        ("agent:0:1:dram", "expected 1 to 1024"),
        ("agent:8:1:dram:5:4:9", "expected to rise"),
        ("agent:8:1:dram@split=2", "split=2"),
        ("agent:8:1:dram@hit=0.5", "go together"),
        ("agent:8:4:dram@hit=0.5+pages=900", "pages=900"),
        ("agent:8:1:dram@second=floppy", "source 'floppy'"),
        ("agent:8:1:dram@faster", "'faster'"),
    ],
)
def test_bad_cell_is_refused_with_the_part_that_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_cell(text)


def test_options_of_a_cell_say_what_differs() -> None:
    cell = parse_cell("agent:128:4:dram@second=nvme-delay-1+no-cache+far-first")
    assert (cell.second, cell.cached, cell.far_first, cell.dedup) == ("nvme-delay-1", False, True, True)


def test_drawn_steps_hit_the_warm_set_as_often_as_asked() -> None:
    drawn = draw_steps(tokens=16, layers=2, columns=24, tp=4, pages=80, hit=0.75, steps=3, row_count=2_000_000)
    warm = set(drawn.warm[:, 0].reshape(-1).tolist())
    earlier: set[int] = set()
    for ids in drawn.steps[:, :, 1]:
        mine = {row for row in ids.reshape(-1).tolist() if row % 4 == 0}
        assert len(mine) == 80
        assert len(mine & warm) == 60
        assert not (mine - warm) & earlier
        earlier |= mine - warm


def test_striping_loads_ranks_evenly_where_columns_do_not() -> None:
    rng = np.random.default_rng(1)
    hot, fresh = rng.integers(0, 100, (40, 64, 1, 12)), rng.integers(1000, 100_000, (40, 64, 1, 12))
    steps = np.concatenate([hot, fresh], axis=3)
    found = imbalance(steps, np.array([100_000]), columns=24, tp=2)
    assert found["stripe"] < 1.02
    assert found["columns"] > 1.5
