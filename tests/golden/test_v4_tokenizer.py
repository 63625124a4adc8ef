# SPDX-License-Identifier: Apache-2.0
"""The V4 tokenizer's ids, and incremental decoding of any ids, also ones that split characters."""

from __future__ import annotations

import numpy as np
import pytest

from slacktier.errors import ConfigError
from slacktier_rowids.tokenizer import V4Tokenizer

TOKENIZER = V4Tokenizer.load()


def test_text_and_ids_of_a_known_sentence() -> None:
    assert TOKENIZER.encode("Hello, world!") == [19923, 14, 2058, 3]
    assert TOKENIZER.decode([19923, 14, 2058, 3]) == "Hello, world!"
    assert TOKENIZER.vocab_size == 129280


def test_special_ids_are_those_of_the_tokenizer() -> None:
    named = {
        "<\uff5cbegin\u2581of\u2581sentence\uff5c>": TOKENIZER.bos_id,
        "<\uff5cend\u2581of\u2581sentence\uff5c>": TOKENIZER.eos_id,
        "<\uff5c\u2581pad\u2581\uff5c>": TOKENIZER.pad_id,
        "<\uff5cUser\uff5c>": TOKENIZER.user_id,
        "<\uff5cAssistant\uff5c>": TOKENIZER.assistant_id,
    }
    for text, token in named.items():
        assert TOKENIZER.special_ids[text] == token
        assert TOKENIZER.encode(text) == [token]
    assert TOKENIZER.decode([TOKENIZER.think_end_id]) == "</think>"


@pytest.mark.parametrize("bad", [-1, 129280])
def test_id_outside_the_vocabulary_is_refused(bad: int) -> None:
    with pytest.raises(ConfigError, match=f"id {bad} is outside the vocabulary 0 to 129279"):
        TOKENIZER.decode([3, bad])
    with pytest.raises(ConfigError, match=f"id {bad} is outside the vocabulary 0 to 129279"):
        TOKENIZER.stream().push(bad)


@pytest.mark.parametrize(
    "text", ["café naïve", "\u6df1\u5ea6\u6c42\u7d22 Engram", "\U0001f469\u200d\U0001f680 ok", "", "a\r\n\tb"]
)
def test_streamed_text_is_the_text(text: str) -> None:
    stream = TOKENIZER.stream()
    pieces = [stream.push(token) for token in TOKENIZER.encode(text)]
    assert "".join(pieces) + stream.finish() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_streamed_text_of_any_ids_equals_decoding_them_at_once() -> None:
    """Half of the ids are parts of characters, which is where an incremental decoder goes wrong."""
    rng = np.random.default_rng(5)
    partial = [token for token in range(20_000) if "\ufffd" in TOKENIZER.decode([token])]
    for _ in range(500):
        ids = np.where(rng.random(12) < 0.5, rng.choice(partial, 12), rng.integers(0, 129280, 12)).tolist()
        stream = TOKENIZER.stream()
        assert "".join([stream.push(token) for token in ids]) + stream.finish() == TOKENIZER.decode(ids)
