# SPDX-License-Identifier: Apache-2.0
"""What the emulated engine answers: recorded tokens, or pseudo-text that continues from the prompt's own n-grams.

Pseudo-text copies runs out of the prompt and jumps between places that share a token, with a new token now and then,
so that rows are reused within a session much as real text reuses them. It is a function of prompt and seed alone:
neither the batch nor the time changes it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]

_MASK: Final = (1 << 64) - 1
_RUN_MIN: Final = 4
_RUN_SPREAD: Final = 24
# One token in so many starts a new n-gram; an assumption, chosen so that answers are neither a copy nor noise.
_NEW_TOKEN_ONE_IN: Final = 16
_LENGTH_MIN: Final = 48
_LENGTH_SPREAD: Final = 208
# Prompts with fewer usable tokens than this also draw on the filler text.
_USABLE_MIN: Final = 64


class Answer(Protocol):
    """Tokens of one answer, one at a time."""

    def next(self) -> tuple[int, bool]:
        """The next token, and whether the answer ends with it; not called again after that."""


class RecordedAnswer:
    """Replays given tokens; at least one."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._at = 0

    def next(self) -> tuple[int, bool]:
        self._at += 1
        return self._tokens[self._at - 1], self._at == len(self._tokens)


class PseudoAnswer:
    """Deterministic pseudo-text.

    prompt         [N] uint32
    filler         [F] uint32, F > 0: ordinary text for prompts that are too short to draw from
    special_first  ids from here on, and ids below 3, are control tokens and never copied
    eos            the token that ends the answer after a length that the hash decides; None: it never ends by itself
    """

    def __init__(self, prompt: Tokens, filler: Tokens, *, seed: int, special_first: int, eos: int | None) -> None:
        digest = hashlib.blake2b(np.ascontiguousarray(prompt).tobytes(), digest_size=8, key=seed.to_bytes(8, "little"))
        self._state = int.from_bytes(digest.digest(), "little")
        usable = prompt[(prompt > 2) & (prompt < special_first)]
        self._text = usable if len(usable) >= _USABLE_MIN else np.concatenate([usable, filler])
        self._eos = eos
        self._left = _LENGTH_MIN + self._draw(_LENGTH_SPREAD)
        self._run = 0
        self._at = self._draw(len(self._text))

    def _draw(self, bound: int) -> int:
        """The next pseudo-random number below bound (splitmix64)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _MASK
        return (mixed ^ (mixed >> 31)) % bound

    def next(self) -> tuple[int, bool]:
        if self._left == 0 and self._eos is not None:
            return self._eos, True
        self._left -= 1
        if self._run == 0:
            self._jump()
        self._run -= 1
        if self._draw(_NEW_TOKEN_ONE_IN) == 0:
            return int(self._text[self._draw(len(self._text))]), False
        token = int(self._text[self._at])
        self._at = (self._at + 1) % len(self._text)
        return token, False

    def _jump(self) -> None:
        """Go on somewhere else that follows the same token, so that the seam is an n-gram of the prompt too."""
        self._run = _RUN_MIN + self._draw(_RUN_SPREAD)
        places = np.flatnonzero(self._text[:-1] == self._text[self._at - 1])
        self._at = int(places[self._draw(len(places))]) + 1 if len(places) else self._draw(len(self._text))
