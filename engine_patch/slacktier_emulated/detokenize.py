# SPDX-License-Identifier: Apache-2.0
"""Token ids to text, one token at a time: characters split between tokens, stop strings, JSON escapes.

Most tokens are whole characters on their own, so their text and its JSON form are worked out once and kept.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol


class TokenTexts(Protocol):
    """What a tokenizer must give: the bytes of one token."""

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that can be sent now; `escaped` is the same as the inside of a JSON string."""

    text: str
    escaped: bytes


EMPTY: Final = Piece("", b"")


def make_piece(text: str) -> Piece:
    return Piece(text, json.dumps(text)[1:-1].encode("ascii")) if text else EMPTY


class PieceTable:
    """Pieces of the tokens seen so far; None marks a token that ends or begins inside a character."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._pieces: dict[int, Piece | None] = {}

    def bytes_of(self, token: int) -> bytes:
        return self._texts.token_bytes(token)

    def piece(self, token: int) -> Piece | None:
        try:
            return self._pieces[token]
        except KeyError:
            piece: Piece | None
            try:
                piece = make_piece(self._texts.token_bytes(token).decode("utf-8"))
            except UnicodeDecodeError:
                piece = None
            self._pieces[token] = piece
            return piece


class Detokenizer:
    """One answer's text. What push() and finish() return adds up to the whole text, up to a stop string."""

    def __init__(self, table: PieceTable, stops: Sequence[str] = ()) -> None:
        self._table = table
        self._partial = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_partial = False
        self._matcher = StopMatcher(stops) if stops else None

    @property
    def has_stopped(self) -> bool:
        """A stop string has come; it and what follows are not part of the text."""
        return self._matcher is not None and self._matcher.has_stopped

    def push(self, token: int) -> Piece:
        """The text that this token makes ready to send."""
        piece = None if self._is_partial else self._table.piece(token)
        if piece is None:
            text = self._partial.decode(self._table.bytes_of(token))
            self._is_partial = bool(self._partial.getstate()[0])
            piece = make_piece(text)
        return piece if self._matcher is None else make_piece(self._matcher.push(piece.text))

    def finish(self) -> Piece:
        """What was held back; a character that never became whole turns into U+FFFD."""
        text = self._partial.decode(b"", final=True)
        self._is_partial = False
        if self._matcher is not None:
            text = self._matcher.push(text) + self._matcher.finish()
        return make_piece(text)


class StopMatcher:
    """Lets text through up to the first stop string; holds back what might become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.has_stopped = False

    def push(self, text: str) -> str:
        if self.has_stopped:
            return ""
        held = self._held + text
        found = [at for at in (held.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.has_stopped = True
            self._held = ""
            return held[: min(found)]
        keep = self._possible_start(held)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of text with which a stop string begins."""
        longest = min(len(text), max(map(len, self._stops)) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[len(text) - length :]) for stop in self._stops):
                return length
        return 0
