# SPDX-License-Identifier: Apache-2.0
"""What a sample of the rows says about all of them, on traffic that follows Zipf's law."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from slacktier.errors import ConfigError
from slacktier_cli.characterize.lookups import LayerHash, Lookups, look_up
from slacktier_cli.characterize.policies import Policy, load_of, simulate
from slacktier_cli.characterize.sampling import Sampling, mix32, parse_rate
from slacktier_cli.characterize.schedule import interleave
from slacktier_cli.traces import Trace
from slacktier_rowids.models import load_hasher

# A small table of the PLE family, which hashes token ids as they are: 16 columns of about 400,000 rows.
CONFIG = {
    "vocab_size": 2000, "eos_token_id": 1999, "ple_layer_ids": [2], "ple_embed_dim": 2560,
    "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 400_000, "seed": 5,
}  # fmt: skip
SIZES = (20_000, 60_000, 150_000)


@pytest.fixture(scope="module")
def zipf_trace() -> Trace:
    """40 sessions of 500 tokens, a prompt of 200 and an answer; the token of rank r has weight 1 / r."""
    weights = 1 / np.arange(1, 1999)
    tokens = np.random.default_rng(11).choice(1998, 40 * 500, p=weights / weights.sum()).astype(np.uint32)
    starts = np.arange(0, 40 * 500, 500)
    return Trace(
        tokens=tokens,
        session_offsets=np.append(starts, 40 * 500),
        turn_session=np.repeat(np.arange(40), 2),
        turn_role=np.tile(np.array([1, 2], np.uint8), 40),
        turn_start=np.stack([starts, starts + 200], 1).ravel(),
        turn_len=np.tile([200, 300], 40),
        vocab_size=2000,
        session_source=np.zeros(40, np.int64),
        source_names=("zipf",),
        session_group=("",) * 40,
        session_name=tuple(map(str, range(40))),
    )


def looked_up(trace: Trace, rate: Fraction, seed: int = 1) -> Lookups:
    return look_up(trace, LayerHash(load_hasher(CONFIG), 1, Sampling.at(rate, 8, seed)), lambda _: None)


def hit_rates(trace: Trace, lookups: Lookups) -> np.ndarray:
    """[policies, sizes] in percent."""
    schedule = interleave(trace, np.arange(40), slots=8, seed=1)
    policies = [Policy.LRU, Policy.CLOCK, Policy.CLOCK16, Policy.S3FIFO]
    curves = simulate(lookups, schedule, load_of(lookups, schedule), policies, SIZES, threads=2)
    return 100 * np.array([curve.hit_rate for curve in curves])


@pytest.fixture(scope="module")
def exact(zipf_trace: Trace) -> np.ndarray:
    return hit_rates(zipf_trace, looked_up(zipf_trace, Fraction(1)))


def test_one_hash_head_of_eight_is_within_half_a_point_of_all(zipf_trace: Trace, exact: np.ndarray) -> None:
    found = hit_rates(zipf_trace, looked_up(zipf_trace, Fraction(1, 8)))
    assert np.abs(found - exact).max() <= 0.5
    assert exact.min() > 9
    assert exact.max() < 50


def test_hashed_half_of_a_head_is_within_a_point(zipf_trace: Trace, exact: np.ndarray) -> None:
    lookups = looked_up(zipf_trace, Fraction(1, 16))
    assert 0.04 < len(lookups.keys) / (16 * len(zipf_trace.tokens)) < 0.09
    assert np.abs(hit_rates(zipf_trace, lookups) - exact).max() <= 1


def test_policies_in_sets_and_in_one_ring_agree_within_a_point(exact: np.ndarray) -> None:
    assert np.abs(exact[1] - exact[2]).max() <= 1


def test_whole_sample_holds_every_row_id_of_the_hasher(zipf_trace: Trace) -> None:
    lookups = looked_up(zipf_trace, Fraction(1))
    expected = load_hasher(CONFIG).packed(zipf_trace.tokens, zipf_trace.session_offsets)[:, 0]
    assert (lookups.rows[lookups.keys].reshape(expected.shape) == expected).all()
    orders = np.repeat([0, 1], 8)
    assert (lookups.class_of[lookups.keys].reshape(expected.shape) == orders).all()


@pytest.mark.parametrize("rate", [Fraction(1, 8), Fraction(3, 8), Fraction(1, 16), Fraction(3, 10)])
def test_sample_is_whole_pages_of_the_first_heads(rate: Fraction, zipf_trace: Trace) -> None:
    lookups = looked_up(zipf_trace, rate)
    sampling = lookups.sampling
    assert sampling.rate == rate
    every = load_hasher(CONFIG).packed(zipf_trace.tokens, zipf_trace.session_offsets)[:, 0]
    heads = every.reshape(len(every), 2, 8)[:, :, : sampling.heads].reshape(len(every), -1).astype(np.uint32)
    picked = sampling.picks(heads // np.uint32(lookups.rows_per_page))
    assert (lookups.rows[lookups.keys] == heads[picked]).all()
    assert (np.diff(lookups.first.astype(np.int64)) == picked.sum(axis=1)).all()


def test_seed_changes_which_pages_are_picked() -> None:
    pages = np.arange(100_000, dtype=np.uint32)
    first, second = (Sampling.at(Fraction(1, 16), 8, seed).picks(pages) for seed in (1, 2))
    assert abs(first.mean() - 0.5) < 0.01
    assert abs((first & second).mean() - 0.25) < 0.01


def test_mix_is_a_bijection() -> None:
    values = np.arange(1 << 16, dtype=np.uint32) << np.uint32(8)
    assert len(np.unique(mix32(values))) == len(values)


def test_cache_that_the_sample_cannot_stand_for_is_refused() -> None:
    sampling = Sampling.at(Fraction(1, 64), 8)
    assert sampling.scaled(64 * 64) == 64
    with pytest.raises(ConfigError, match="4000 cache rows at sampling rate 1/64 are 62; fewer than 64 say nothing"):
        sampling.scaled(4000)


@pytest.mark.parametrize("text", ["0", "-1/8", "9/8", "1.5", "one", "1/0", "nan", ""])
def test_bad_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="sampling rate"):
        Sampling.at(parse_rate(text), 8)


def test_layer_without_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer 14: no table in this model, whose layers are 1"):
        LayerHash(load_hasher(CONFIG), 14, Sampling.at(Fraction(1), 8))
