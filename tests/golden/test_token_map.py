# SPDX-License-Identifier: Apache-2.0
"""The V4 tokenizer's compressed vocabulary: the installed package gives the golden map, also in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from golden_vectors import engram_vectors, load

from slacktier_rowids.models import V41_CONFIG, load_hasher
from slacktier_rowids.tokenizer import V4Tokenizer, tokenizer_sha256, v4_tokenizer_path
from slacktier_rowids.tokenmap import build_token_map

GOLDEN = load("engram_hash_v41.npz")


def test_installed_tokenizer_is_the_golden_one() -> None:
    expected = "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"
    assert tokenizer_sha256(v4_tokenizer_path()) == expected


def test_token_map_built_from_the_tokenizer_is_the_golden_one() -> None:
    built = build_token_map(V4Tokenizer.load())
    np.testing.assert_array_equal(built, GOLDEN["token_map"])
    assert built.max() + 1 == GOLDEN["compressed_vocab_size"]


@pytest.mark.parametrize("seed", ["1", "77"])
def test_token_map_does_not_depend_on_pythonhashseed(seed: str, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from slacktier_rowids.tokenmap import load_token_map; "
        "load_token_map(cache=Path(sys.argv[1]))"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], env={**os.environ, "PYTHONHASHSEED": seed}, check=True
    )
    (cached,) = tmp_path.iterdir()
    with np.load(cached) as archive:
        np.testing.assert_array_equal(archive["token_map"], GOLDEN["token_map"])


def test_golden_texts_encode_to_the_golden_tokens_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From text to row ids: the names of the text sequences are the first characters of their texts."""
    tokenizer = V4Tokenizer.load()
    monkeypatch.setenv("HOME", str(tmp_path))
    hasher = load_hasher(V41_CONFIG)
    texts = 0
    for name, (tokens, rows) in zip(GOLDEN["seq_names"], engram_vectors(GOLDEN).sequences(), strict=True):
        kind, _, start = str(name).partition(":")
        if kind != "text":
            continue
        text = tokenizer.decode(tokens.tolist())
        assert text.startswith(start)
        assert tokenizer.encode(text) == tokens.tolist()
        np.testing.assert_array_equal(hasher.sequence(tokenizer.encode(text)), rows)
        texts += 1
    assert texts > 5
