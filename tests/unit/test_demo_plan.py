# SPDX-License-Identifier: Apache-2.0
"""What is decided before a run: arms, their order, block length and token limits, settings that make no sense."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_cli.demo.arms import DEFAULT_ARMS, arm_names, parse_arm, parse_arms
from slacktier_cli.demo.limits import Load, choose_block_seconds, choose_limits
from slacktier_cli.demo.schedule import shuffled_blocks
from slacktier_cli.demo.settings import DemoSettings


def load(**changes: Any) -> Load:
    """A disk of 7,000 IOPS that half of the lookups of a prompt reach."""
    values = {"sessions": 8, "output_tokens": 64, "rows_per_token": 12, "tokens_per_s": 1000.0, "pages_per_s": 7000.0}
    return Load(**{**values, **changes})


def test_arms_say_where_each_layer_is() -> None:
    later = parse_arm("later-nvme")
    assert [later.source(index).tier for index in range(2)] == [Tier.DRAM, Tier.NVME]
    remote = parse_arm("paper-rdma-split")
    assert remote.is_emulated_device
    assert remote.source(1).delay == "paper-rdma"


def test_cache_is_split_evenly_and_only_where_the_arm_has_one() -> None:
    assert [parse_arm("nvme-split").cache_rows(index, 101, 2) for index in range(2)] == [51, 50]
    assert [parse_arm("nvme").cache_rows(index, 101, 2) for index in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["dram", "tape"], "arm 'tape': no such arm"),
        (["dram", "nvme", "nvme"], "an arm is named twice"),
        (["nvme"], "dram is missing"),
        (["dram-split"], "no such arm"),
        ([], "dram is missing"),
    ],
)
def test_arms_that_make_no_sense_are_refused(names: list[str], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        parse_arms(names)


def test_every_known_arm_parses() -> None:
    assert {parse_arm(name).name for name in arm_names()} == set(arm_names())


def test_every_round_runs_each_arm_once_in_an_order_of_its_own() -> None:
    arms = parse_arms(DEFAULT_ARMS)
    blocks = shuffled_blocks(arms, 8, seed=1)
    rounds = [[block.arm.name for block in blocks if block.round_index == r] for r in range(8)]
    assert all(Counter(names) == Counter(DEFAULT_ARMS) for names in rounds)
    assert len({tuple(names) for names in rounds}) > 1
    assert blocks == shuffled_blocks(arms, 8, seed=1)
    assert blocks != shuffled_blocks(arms, 8, seed=2)


def test_default_run_on_a_slow_disk_stays_short() -> None:
    """The default run's blocks must leave room in four minutes for tables and start-up."""
    assert 3 * len(DEFAULT_ARMS) * choose_block_seconds(load()) <= 120


def test_block_grows_with_the_load_up_to_a_bound() -> None:
    assert choose_block_seconds(load()) == 10.0
    assert 10.0 < choose_block_seconds(load(sessions=32)) < 30.0
    assert choose_block_seconds(load(sessions=512)) == 30.0


def test_first_prompts_take_a_quarter_of_a_block_on_the_disk() -> None:
    limits = choose_limits(load(), 12.0, history=None, turn=None)
    assert limits.history_tokens * 8 / 1000.0 <= 0.25 * 12.0
    assert limits.history_tokens == 375
    assert limits.turn_tokens == 187


def test_limits_stay_within_bounds_and_given_ones_win() -> None:
    slow = choose_limits(load(tokens_per_s=10.0, sessions=64), 10.0, history=None, turn=None)
    assert (slow.history_tokens, slow.turn_tokens) == (16, 16)
    fast = choose_limits(load(tokens_per_s=1e6), 10.0, history=None, turn=None)
    assert (fast.history_tokens, fast.turn_tokens) == (384, 192)
    given = choose_limits(load(), 10.0, history=2000, turn=300)
    assert (given.history_tokens, given.turn_tokens) == (2000, 300)


def test_disk_faster_than_any_that_lasts_is_not_counted_on() -> None:
    """A host that holds fresh files in memory makes a disk look ten times as fast as it will be."""
    cached = load(sessions=64, pages_per_s=100_000.0, tokens_per_s=14_000.0)
    lasting = load(sessions=64, pages_per_s=20_000.0, tokens_per_s=2_800.0)
    assert choose_block_seconds(cached) == choose_block_seconds(lasting)
    assert choose_limits(cached, 10.0, history=None, turn=None) == choose_limits(lasting, 10.0, history=None, turn=None)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sessions": 0}, "sessions: 0, expected 1 to 1024"),
        ({"blocks": 0}, "blocks: 0"),
        ({"block_seconds": 0.5}, "block seconds: 0.5"),
        ({"block_seconds": float("nan")}, "block seconds: nan"),
        ({"tp": 0}, "tp: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"output_tokens": 1}, "output tokens: 1"),
        ({"history_tokens": 1}, "history tokens: 1"),
        ({"cache_rows": 0}, "cache rows: 0"),
        ({"slo_pct": 0.0}, "slo: 0 %"),
    ],
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        DemoSettings(out=Path("x"), arms=parse_arms(DEFAULT_ARMS), **changes)
