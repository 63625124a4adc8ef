# SPDX-License-Identifier: Apache-2.0
"""Recorded lookups against the plain CLOCK: which steps count, and recordings that make no sense."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktier.errors import SlackTierError
from slacktier_cli.demo.clock_check import LookupRecording


def arrays(**changes: Any) -> dict[str, Any]:
    """Steps 10 to 12 of layer 5: prefill of rows 1 2 3, decode of 1 2, decode of 9 9; cache of 4 rows."""
    return {
        "layer_ids": np.array([5]),
        "step_number": np.array([10, 11, 12]),
        "step_is_prefill": np.array([1, 0, 0], np.uint8),
        "rows_5": np.array([1, 2, 3, 1, 2, 9, 9], np.uint32),
        "offsets_5": np.array([0, 3, 5, 7]),
        "cache_rows_5": np.array([4, 4, 4]),
        "hits_5": np.array([0, 2, 0]),
        "repeats_5": np.array([0, 0, 1]),
        **changes,
    }


def recording(path: Path, **changes: Any) -> LookupRecording:
    np.savez(path / "r.npz", **{name: value for name, value in arrays(**changes).items() if value is not None})
    return LookupRecording(path / "r.npz")


def test_hit_rates_of_cache_and_simulation_agree_where_the_cache_is_a_clock(tmp_path: Path) -> None:
    found = recording(tmp_path)
    assert found.layer_ids == (5,)
    check = found.check(5, 10, 13)
    assert (check.lookups, check.cache_rows) == (7, 4)
    assert check.hit_rate == check.clock_hit_rate == pytest.approx(3 / 7)
    assert check.decode_hit_rate == check.decode_clock_hit_rate == 0.75
    assert check.agrees


def test_only_the_blocks_own_steps_are_simulated_from_cold(tmp_path: Path) -> None:
    check = recording(tmp_path).check(5, 11, 12)
    assert (check.lookups, check.hit_rate, check.clock_hit_rate) == (2, 1.0, 0.0)
    assert check.difference_points == 100.0
    assert not check.agrees


def test_prefill_alone_has_no_decode_rate(tmp_path: Path) -> None:
    assert recording(tmp_path).check(5, 10, 11).decode_hit_rate is None


@pytest.mark.parametrize(
    ("changes", "first", "error"),
    [
        ({}, 50, "cache sizes \\[\\], expected one"),
        ({"cache_rows_5": np.array([4, 8, 8])}, 10, "cache sizes \\[4, 8\\], expected one"),
        ({"hits_5": None}, 10, "recorded lookups without hits_5"),
    ],
)
def test_recording_that_makes_no_sense_is_an_error(
    tmp_path: Path, changes: dict[str, Any], first: int, error: str
) -> None:
    with pytest.raises(SlackTierError, match=error):
        recording(tmp_path, **changes).check(5, first, first + 3)


def test_recording_that_is_missing_or_no_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("missing.npz", "text.npz"):
        with pytest.raises(SlackTierError, match=f"{name}: recorded lookups cannot be read"):
            LookupRecording(tmp_path / name)
