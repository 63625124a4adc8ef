# SPDX-License-Identifier: Apache-2.0
"""The CLOCK simulator against one that does it slowly and obviously."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slacktier_cli.demo.clock import ClockCache, simulate


def slow_clock(steps: list[list[int]], capacity: int) -> int:
    """Hits of a ring of [row, bit] cells that is searched from end to end."""
    ring: list[list[int]] = []
    hand = hits = 0
    for row_ids in steps:
        for index, row_id in enumerate(row_ids):
            cell = next((cell for cell in ring if cell[0] == row_id), None)
            if cell is not None:
                cell[1] = 1
                hits += 1
            elif row_id in row_ids[:index]:
                hits += 1
            elif len(ring) < capacity:
                ring.append([row_id, 0])
            elif capacity:
                while ring[hand][1]:
                    ring[hand][1] = 0
                    hand = (hand + 1) % capacity
                ring[hand] = [row_id, 0]
                hand = (hand + 1) % capacity
    return hits


@given(st.lists(st.lists(st.integers(0, 30), max_size=20), max_size=20), st.integers(0, 25))
def test_simulator_agrees_with_a_slow_one(steps: list[list[int]], capacity: int) -> None:
    count = simulate(steps, capacity)
    assert count.lookups == sum(len(step) for step in steps)
    assert count.hits == slow_clock(steps, capacity)


def test_row_asked_for_again_in_its_step_is_a_hit_even_without_a_cache() -> None:
    assert simulate([[1, 1, 2], [1]], capacity=0).hits == 1


def test_row_used_again_survives_one_that_was_not() -> None:
    cache = ClockCache(2)
    cache.step([1, 2])
    cache.step([1])
    cache.step([3])
    assert 1 in cache
    assert 2 not in cache


def test_nothing_looked_up_has_no_rate() -> None:
    assert simulate([], 4).rate is None


def test_second_pass_over_rows_that_fit_is_all_hits() -> None:
    steps = np.arange(640).reshape(-1, 64).tolist()
    assert simulate([*steps, *steps], capacity=640).hits == 640
