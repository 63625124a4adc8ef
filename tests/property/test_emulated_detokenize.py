# SPDX-License-Identifier: Apache-2.0
"""Tokens to text one at a time: characters cut between tokens, stop strings, JSON escapes."""

from __future__ import annotations

import json
from itertools import cycle

from hypothesis import given
from hypothesis import strategies as st

from slacktier_emulated.detokenize import Detokenizer, PieceTable


class Texts:
    """Token n is the n-th byte string given."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    def token_bytes(self, token: int) -> bytes:
        return self._parts[token]


def spell(parts: list[bytes], stops: list[str] | None = None) -> tuple[list[str], Detokenizer]:
    """Pieces of all tokens until a stop string came, what was held back last."""
    detokenizer = Detokenizer(PieceTable(Texts(parts)), stops or [])
    pieces = []
    for token in range(len(parts)):
        piece = detokenizer.push(token)
        assert json.loads(b'"' + piece.escaped + b'"') == piece.text
        pieces.append(piece.text)
        if detokenizer.has_stopped:
            return pieces, detokenizer
    return [*pieces, detokenizer.finish().text], detokenizer


@given(st.text(), st.lists(st.integers(1, 3), min_size=1))
def test_text_cut_anywhere_comes_out_whole(text: str, cuts: list[int]) -> None:
    raw, parts, sizes = text.encode(), [], cycle(cuts)
    while raw:
        cut = next(sizes)
        parts.append(raw[:cut])
        raw = raw[cut:]
    assert "".join(spell(parts)[0]) == text


def test_character_is_sent_with_the_token_that_completes_it() -> None:
    euro = "€".encode()
    assert spell([b"a", euro[:1], euro[1:2], euro[2:] + b"b"])[0] == ["a", "", "", "€b", ""]


def test_character_that_never_becomes_whole_ends_as_a_replacement() -> None:
    assert spell([b"a", "€".encode()[:2]])[0] == ["a", "", "\ufffd"]
    assert spell([b"a", b"\xff", b"b"])[0] == ["a", "\ufffd", "b", ""]


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_however_tokens_fall(text: str, stops: list[str]) -> None:
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    pieces, detokenizer = spell([character.encode() for character in text], stops)
    assert detokenizer.has_stopped == bool(found)
    # The first to be complete wins; of those complete at once, the one that begins first.
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = text
    if ends:
        expected = text[: min(at for at in (text[: min(ends)].find(stop) for stop in stops) if at >= 0)]
    assert "".join(pieces) == expected


def test_what_might_become_a_stop_string_is_held_back_until_it_cannot() -> None:
    assert spell([b"x", b"E", b"N", b"O"], ["END"])[0] == ["x", "", "", "ENO", ""]
    assert spell([b"x", b"E", b"N"], ["END"])[0] == ["x", "", "", "EN"]
