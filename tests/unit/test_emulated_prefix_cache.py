# SPDX-License-Identifier: Apache-2.0
"""The prefix cache: whole blocks, whole prefixes, bounded, least recently used out first."""

from __future__ import annotations

import numpy as np

from slacktier_emulated.prefix_cache import BLOCK_TOKENS, PrefixCache, Tokens


def tokens(count: int, *, salt: int = 0) -> Tokens:
    return (np.arange(count) * 7 + salt).astype(np.uint32)


def test_second_request_reuses_the_whole_blocks_of_the_first() -> None:
    cache = PrefixCache(10_000)
    cache.extend([], tokens(100))
    assert len(cache.match(tokens(200))) == 100 // BLOCK_TOKENS
    assert cache.match(tokens(200, salt=1)) == []


def test_at_least_one_token_is_left_to_compute() -> None:
    cache = PrefixCache(10_000)
    cache.extend([], tokens(64))
    assert len(cache.match(tokens(64))) == 3
    assert len(cache.match(tokens(65))) == 4
    assert cache.match(tokens(1)) == []


def test_block_counts_only_behind_the_same_prefix() -> None:
    cache = PrefixCache(10_000)
    cache.extend([], tokens(64))
    moved = np.concatenate([tokens(16, salt=9), tokens(64)[16:], tokens(8)])
    assert cache.match(moved) == []


def test_extending_step_by_step_gives_the_same_chain_as_at_once() -> None:
    cache = PrefixCache(10_000)
    chain: list[bytes] = []
    for end in (5, 16, 40, 64, 70):
        cache.extend(chain, tokens(end))
    other: list[bytes] = []
    PrefixCache(10_000).extend(other, tokens(70))
    assert chain == other


def test_bound_holds_and_the_least_recently_used_prefix_goes_first() -> None:
    cache = PrefixCache(8 * BLOCK_TOKENS)
    for salt in (1, 2):
        cache.extend([], tokens(64, salt=salt))
    cache.match(tokens(65, salt=1))
    cache.extend([], tokens(64, salt=3))
    assert cache.tokens == 8 * BLOCK_TOKENS
    assert len(cache.match(tokens(65, salt=1))) == 4
    assert cache.match(tokens(65, salt=2)) == []


def test_sequence_longer_than_the_cache_keeps_its_start() -> None:
    cache = PrefixCache(4 * BLOCK_TOKENS)
    cache.extend([], tokens(1000))
    assert len(cache.match(tokens(1000))) == 4


def test_capacity_zero_turns_it_off() -> None:
    cache = PrefixCache(0)
    cache.extend([], tokens(100))
    assert cache.match(tokens(100)) == []
