# SPDX-License-Identifier: Apache-2.0
"""Layouts from model configs, what they refuse, and what hashers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from row_id_models import ENGRAM_CONFIG, IMAGE, PLE_CONFIG, TOKEN_MAP, engram_hasher, ple_hasher

from slacktier.errors import ConfigError
from slacktier_rowids.engram import EngramHasher, EngramLayout, scaled_config
from slacktier_rowids.models import QWEN38_CONFIG, V41_CONFIG, load_config, load_hasher, load_layout
from slacktier_rowids.ngram import BEFORE_START
from slacktier_rowids.ple import PleLayout
from slacktier_rowids.primes import bucket_sizes, is_prime


def test_primes_agree_with_a_sieve() -> None:
    sieve = np.ones(5000, bool)
    sieve[:2] = False
    for factor in range(2, 71):
        sieve[factor * factor :: factor] = False
    assert [number for number in range(5000) if is_prime(number)] == np.flatnonzero(sieve).tolist()


def test_bucket_sizes_of_all_layers_are_one_ascending_sequence() -> None:
    sizes = bucket_sizes(10, layers=2, orders=2, heads=2)
    assert sizes.tolist() == [[[11, 13], [17, 19]], [[23, 29], [31, 37]]]
    np.testing.assert_array_equal(bucket_sizes(10, layers=1, orders=2, heads=2, skip_layers=1), sizes[1:])


@pytest.mark.parametrize("base", [0, 1, -7, 1 << 40])
def test_bucket_base_out_of_range_is_refused(base: int) -> None:
    with pytest.raises(ConfigError, match="hash bucket base"):
        bucket_sizes(base, layers=1, orders=1, heads=1)


def test_shipped_configs_have_the_released_shapes() -> None:
    v41, qwen = load_layout(V41_CONFIG), load_layout(QWEN38_CONFIG)
    assert (v41.layer_ids, v41.row_counts, v41.columns) == ((1, 14), (384006168, 384016682), 24)
    assert (qwen.layer_ids, qwen.row_counts, qwen.columns) == ((1,), (320001446,), 16)


def test_flat_and_nested_engram_configs_give_the_same_layout() -> None:
    nested = {"image_token_id": IMAGE, "text_config": {k: v for k, v in ENGRAM_CONFIG.items() if k != "image_token_id"}}
    flat, deep = EngramLayout.from_config(ENGRAM_CONFIG), EngramLayout.from_config(nested)
    assert (flat.layer_ids, flat.row_counts, flat.image_token_id) == (deep.layer_ids, deep.row_counts, IMAGE)
    np.testing.assert_array_equal(flat.constants.multipliers, deep.constants.multipliers)


@pytest.mark.parametrize(
    ("vision", "expected"),
    [
        ({}, IMAGE),
        ({"vision_n_layers": 0}, None),
        ({"vision_n_layers": 2}, IMAGE),
        ({"vision_config": {"num_hidden_layers": 0}}, None),
        ({"image_token_id": None}, None),
    ],
)
def test_image_token_counts_only_where_there_is_a_vision_tower(vision: dict[str, Any], expected: int | None) -> None:
    assert EngramLayout.from_config(ENGRAM_CONFIG | vision).image_token_id == expected


def test_row_counts_other_than_the_buckets_add_up_to_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"engram_num_embeddings is .* the hash buckets add up to"):
        EngramLayout.from_config(ENGRAM_CONFIG | {"engram_num_embeddings": [1, 2, 3]})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engram_layer_ids", []),
        ("engram_layer_ids", [1, 1, 9]),
        ("engram_layer_ids", "1,4"),
        ("engram_layer_ids", [1, -4, 9]),
        ("engram_max_ngram_size", 1),
        ("engram_n_heads", 0),
        ("engram_n_heads", True),
        ("engram_head_dim", None),
        ("engram_vocab_size", 16.5),
        ("engram_vocab_size", "16000000"),
        ("engram_compressed_vocab_size", 0),
        ("image_token_id", -1),
        ("text_config", [1]),
    ],
)
def test_impossible_engram_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        EngramLayout.from_config(ENGRAM_CONFIG | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ple_layer_ids", [0]),
        ("ple_layer_ids", None),
        ("vocab_size", None),
        ("eos_token_id", [1, 2]),
        ("eos_token_id", 40),
        ("ngram_size", 1),
        ("heads_per_ngram", 0),
        ("ple_embed_dim", 97),
        ("seed", -1),
        ("make_ngram_vocab_size_divisible_by", 0),
    ],
)
def test_impossible_ple_field_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=field):
        PleLayout.from_config(PLE_CONFIG | {field: value})


def test_ple_padding_and_default_fields() -> None:
    layout = PleLayout.from_config(PLE_CONFIG | {"make_ngram_vocab_size_divisible_by": 100})
    assert layout.layer_ids == (2, 5)
    assert all(padded % 100 == 0 and 0 <= padded - rows < 100 for rows, padded in zip(
        layout.row_counts, layout.padded_row_counts, strict=True))  # fmt: skip
    bare = {"vocab_size": 248320, "eos_token_id": 248044, "ple_layer_ids": [2], "hidden_size": 2560}
    assert PleLayout.from_config(bare).row_counts == (320001446,)


def test_compressed_vocabulary_other_than_the_configs_is_refused() -> None:
    layout = EngramLayout.from_config(ENGRAM_CONFIG)
    for wrong in (TOKEN_MAP + 1, TOKEN_MAP % 16, TOKEN_MAP - 1, np.where(TOKEN_MAP == 3, 4, TOKEN_MAP), TOKEN_MAP[:0]):
        with pytest.raises(ConfigError, match="engram_compressed_vocab_size is 17"):
            EngramHasher(layout, wrong)


def test_pad_token_outside_the_token_map_is_refused() -> None:
    with pytest.raises(ConfigError, match="engram_pad_token_id 40 is outside"):
        engram_hasher(engram_pad_token_id=40)


@pytest.mark.parametrize("bad", [-1, -5, 40, 999_999, -(2**62)])
@pytest.mark.parametrize("hasher", [engram_hasher(), ple_hasher()])
def test_id_outside_the_vocabulary_is_refused_by_position(hasher: Any, bad: int) -> None:
    for ask in (
        lambda: hasher.sequence([1, 2, bad]),
        lambda: hasher.packed([1, 2, bad], [0, 1, 3]),
    ):
        with pytest.raises(ConfigError, match=f"token 2: id {bad} is outside the vocabulary 0 to 39"):
            ask()
    with pytest.raises(ConfigError, match=f"token 0: id {bad} is outside"):
        hasher.step([[1] * (hasher.ngram_size - 1) + [bad]])


def test_image_positions_are_ids_of_a_vision_model_only() -> None:
    assert engram_hasher().sequence([1, 1_000_000, 2]).shape == (3, 3, 9)
    for hasher in (engram_hasher(image_token_id=None), ple_hasher()):
        with pytest.raises(ConfigError, match="id 1000000 is outside"):
            hasher.sequence([1, 1_000_000, 2])


def test_bad_history_is_refused() -> None:
    hasher = engram_hasher()
    with pytest.raises(ConfigError, match="history token 1: id 77"):
        hasher.sequence([1], history=[3, 77])
    with pytest.raises(ConfigError, match="left of a place before the start"):
        hasher.step([[3, BEFORE_START, 4, 5]])
    with pytest.raises(ConfigError, match=r"history: shape \[1, 2\], expected \[1, 3\]"):
        hasher.packed([1], [0, 1], history=[[1, 2]])
    with pytest.raises(ConfigError, match="recent: 3 tokens per sequence, expected 4"):
        hasher.step([[1, 2, 3]])


@pytest.mark.parametrize("offsets", [[], [0], [1, 3], [0, 2], [0, 3, 2, 3], [0, 4]])
def test_offsets_that_do_not_tile_the_tokens_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ConfigError, match="offsets"):
        ple_hasher().packed([1, 2, 3], offsets)


@pytest.mark.parametrize("junk", [[1.0, 2.0], ["1", "2"], [True], [[1], [2, 3]], [[1, 2]], 7, [2**64], [2**63]])
def test_junk_is_no_token_list(junk: Any) -> None:
    with pytest.raises((ConfigError, TypeError)):
        ple_hasher().packed(junk, [0, 2])


def test_empty_input_gives_empty_rows() -> None:
    for hasher in (engram_hasher(), ple_hasher()):
        layers, columns = len(hasher.layout.layer_ids), hasher.layout.columns
        assert hasher.sequence([]).shape == (0, layers, columns)
        assert hasher.packed([], [0, 0, 0]).shape == (0, layers, columns)
        assert hasher.step(np.empty((0, hasher.ngram_size), np.int64)).shape == (0, layers, columns)


def test_rows_of_one_layer_are_contiguous() -> None:
    for rows in (engram_hasher().sequence([1, 2, 3]), engram_hasher().step([[1, 2, 3, 4]])):
        assert rows.dtype == np.int64
        assert all(rows[:, layer].flags.c_contiguous for layer in range(3))


def test_constants_cannot_be_changed() -> None:
    constants = engram_hasher().constants
    with pytest.raises(ValueError, match="read-only"):
        constants.primes[0, 0, 0] = 4


def test_scaled_config_keeps_all_but_the_tables() -> None:
    small = scaled_config(V41_CONFIG, 1000)
    layout = EngramLayout.from_config(small)
    assert layout.row_counts == (25874, 30058)
    assert (layout.layer_ids, layout.compressed_vocab_size, layout.image_token_id) == ((1, 14), 99092, 129264)
    assert V41_CONFIG["text_config"]["engram_vocab_size"] == 16_000_000


def test_config_is_a_name_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLE_CONFIG))
    assert load_hasher(load_config(str(path))).layout.row_counts == ple_hasher().layout.row_counts
    assert load_config("v41") is V41_CONFIG


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"{", "Expecting"), (b"[1]", "holds a list"), (b"\xff\xfe", "decode"), (None, "neither")],
)
def test_unreadable_config_is_refused(content: bytes | None, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        load_config(str(path))


def test_config_without_tables_is_refused() -> None:
    with pytest.raises(ConfigError, match="no n-gram tables"):
        load_layout({"model_type": "qwen2", "text_config": None})
