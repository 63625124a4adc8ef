# SPDX-License-Identifier: Apache-2.0
"""The token map: which tokens share a code, and a cache that may be missing, broken or not writable."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from small_tokenizer import write_small_tokenizer

from slacktier.errors import ConfigError
from slacktier_rowids import tokenmap
from slacktier_rowids.tokenizer import TextTokenizer
from slacktier_rowids.tokenmap import build_token_map, load_token_map


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    return write_small_tokenizer(tmp_path)


def test_tokens_that_differ_in_case_accents_or_outer_space_share_a_code(tokenizer_file: Path) -> None:
    tokenizer = TextTokenizer.from_file(tokenizer_file)
    code = {tokenizer.backend.id_to_token(at): int(of) for at, of in enumerate(build_token_map(tokenizer))}
    # Byte-level spellings: \u0120 is a space, \u0109 a tab, \u010a a newline, \u00c3\u00a9 an e acute.
    assert code["T"] == code["t"]
    assert code["The"] == code["\u0120The"]
    assert code["\u00c3\u00a9"] == code["e"] == code["E"]
    assert code["\u0120"] == code["\u0109"] == code["\u010a"] == code["\u0120\u0109"]
    assert len({code[token] for token in ("\u0120", "t", "e", "The", "(", "()")}) == 6


def test_codes_are_numbered_in_order_of_first_appearance(tokenizer_file: Path) -> None:
    codes = build_token_map(TextTokenizer.from_file(tokenizer_file))
    assert codes.dtype == np.int32
    assert codes[0] == 0
    assert (np.maximum.accumulate(codes)[:-1] + 1 >= codes[1:]).all()


def test_parts_of_a_character_keep_codes_of_their_own(tokenizer_file: Path) -> None:
    tokenizer = TextTokenizer.from_file(tokenizer_file)
    partial = [token for token in range(tokenizer.vocab_size) if "\ufffd" in tokenizer.decode([token])]
    codes = build_token_map(tokenizer)
    assert len(partial) > 100
    assert len({int(codes[token]) for token in partial}) == len(partial)


def test_second_load_comes_from_the_cache(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = load_token_map(tokenizer_file, cache=tmp_path / "cache")
    monkeypatch.setattr(tokenmap, "build_token_map", None)
    np.testing.assert_array_equal(load_token_map(tokenizer_file, cache=tmp_path / "cache"), built)


def test_another_tokenizer_has_another_cache_file(tokenizer_file: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = load_token_map(tokenizer_file, cache=cache)
    tokenizer_file.write_text(tokenizer_file.read_text().replace('"<eos>"', '"<END>"'))
    load_token_map(tokenizer_file, cache=cache)
    assert len(list(cache.iterdir())) == 2
    assert len(first) == 300


def test_cache_holds_only_whole_files_by_their_final_name(tokenizer_file: Path, tmp_path: Path) -> None:
    load_token_map(tokenizer_file, cache=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    assert cached.suffix == ".npz"


@pytest.mark.parametrize("damage", [b"", b"junk", "cut", "flip"])
def test_broken_cache_is_built_anew(
    damage: bytes | str, tokenizer_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    built = load_token_map(tokenizer_file, cache=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    whole = cached.read_bytes()
    middle = len(whole) // 2
    if damage == "cut":
        cached.write_bytes(whole[:middle])
    elif damage == "flip":
        cached.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    else:
        cached.write_bytes(damage)
    np.testing.assert_array_equal(load_token_map(tokenizer_file, cache=tmp_path / "cache"), built)
    assert "is built anew" in caplog.text
    assert cached.read_bytes() == whole


def test_cache_of_another_shape_is_not_believed(tokenizer_file: Path, tmp_path: Path) -> None:
    built = load_token_map(tokenizer_file, cache=tmp_path / "cache")
    (cached,) = (tmp_path / "cache").iterdir()
    np.savez(cached, token_map=np.zeros((2, 2)))
    np.testing.assert_array_equal(load_token_map(tokenizer_file, cache=tmp_path / "cache"), built)


def test_cache_that_cannot_be_written_costs_a_warning(
    tokenizer_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with caplog.at_level(logging.WARNING):
        assert len(load_token_map(tokenizer_file, cache=tmp_path / "cache")) == 300
    assert "is not cached" in caplog.text


@pytest.mark.parametrize("content", [None, "{}", "not json"])
def test_file_that_is_no_tokenizer_is_refused(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=str(path)):
        load_token_map(path, cache=tmp_path / "cache")
