# SPDX-License-Identifier: Apache-2.0
"""However a sequence is cut up, its row ids are the same, and they are those of the rule in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_id_models import EOS, IMAGE, PAD, engram_hasher, ple_hasher, reference_rows

BIGRAM_ROWS = [53 + 59 + 61, 67 + 71 + 73, 79 + 83 + 89]
HASHERS = [
    pytest.param(engram_hasher(), id="engram"),
    pytest.param(engram_hasher(engram_max_ngram_size=2, engram_num_embeddings=BIGRAM_ROWS), id="engram-2gram"),
    pytest.param(ple_hasher(), id="ple"),
    pytest.param(ple_hasher(ngram_size=5, ple_embed_dim=160), id="ple-5gram"),
]
each_hasher = pytest.mark.parametrize("hasher", HASHERS)

token = st.integers(0, 39) | st.sampled_from([EOS, PAD, IMAGE])
sequence = st.lists(token, max_size=30)
batch = st.lists(sequence, min_size=1, max_size=6)


@each_hasher
@given(tokens=sequence)
def test_ids_follow_the_rule_and_lie_in_their_column(hasher: Any, tokens: list[int]) -> None:
    rows = hasher.sequence(tokens)
    assert rows.tolist() == reference_rows(hasher, tokens)
    offsets = hasher.constants.offsets
    ends = offsets + hasher.constants.primes.reshape(offsets.shape)
    assert ((rows >= offsets) & (rows < ends)).all()


@given(tokens=st.lists(token | st.integers(1_000_000, 2**40), max_size=30))
def test_image_positions_follow_the_rule(tokens: list[int]) -> None:
    hasher = engram_hasher()
    assert hasher.sequence(tokens).tolist() == reference_rows(hasher, tokens)


@each_hasher
@given(sequences=batch)
def test_packed_equals_separate_equals_step_by_step(hasher: Any, sequences: list[list[int]]) -> None:
    flat = [token for tokens in sequences for token in tokens]
    packed = hasher.packed(flat, np.cumsum([0, *map(len, sequences)]))
    separate = np.concatenate([hasher.sequence(tokens) for tokens in sequences])
    np.testing.assert_array_equal(packed, separate)
    windows = [hasher.window(tokens[: end + 1]) for tokens in sequences for end in range(len(tokens))]
    if windows:
        np.testing.assert_array_equal(packed, hasher.step(windows))


@each_hasher
@given(tokens=st.lists(token, min_size=1, max_size=40), chunk=st.sampled_from([1, 2, 3, 4, 8192]))
def test_chunked_prefill_gives_identical_ids(hasher: Any, tokens: list[int], chunk: int) -> None:
    parts = [
        hasher.sequence(tokens[first : first + chunk], history=tokens[:first]) for first in range(0, len(tokens), chunk)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), hasher.sequence(tokens))


@each_hasher
@given(sequences=batch, cut=st.integers(0, 30))
def test_packed_chunks_continue_their_histories(hasher: Any, sequences: list[list[int]], cut: int) -> None:
    heads, tails = [tokens[:cut] for tokens in sequences], [tokens[cut:] for tokens in sequences]
    history = [hasher.window(head)[1:] for head in heads]
    flat = [token for tail in tails for token in tail]
    rows = hasher.packed(flat, np.cumsum([0, *map(len, tails)]), history=history)
    whole = [hasher.sequence(tokens)[cut:] for tokens in sequences]
    np.testing.assert_array_equal(rows, np.concatenate(whole))


@each_hasher
def test_chunks_of_8192_equal_one_long_prefill(hasher: Any) -> None:
    """Longer than one block of the hasher, so that block and chunk borders fall in different places."""
    tokens = np.random.default_rng(7).integers(0, 40, 20_000)
    whole = hasher.sequence(tokens)
    parts = [
        hasher.sequence(tokens[first : first + 8192], history=tokens[:first]) for first in range(0, len(tokens), 8192)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(hasher.sequence(tokens[-50:], history=tokens[:-50]), whole[-50:])
