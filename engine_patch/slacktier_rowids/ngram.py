# SPDX-License-Identifier: Apache-2.0
"""The n-gram hash that both table families share: look-back codes in, row ids out.

For token t, c_s is the code of the token s places before it. r_n is the XOR over s < n of c_s * multiplier[s],
and the row id of order n and head h is r_n mod prime[n, h] + offset[n, h]. Every product is below 2^63, so int64
never wraps. A family only decides what the codes are and where look-back stops (`Vocabulary`); this file decides
how sequences, packed batches and decode steps become look-back windows, so that all of them give the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError

Ids = npt.NDArray[np.int64]
TokenList = Sequence[int] | npt.NDArray[np.integer[Any]]
Flags = npt.NDArray[np.bool_]

# Stands for "no token": a place before the start of its sequence, in history and windows only.
BEFORE_START: Final = -1

# Tokens hashed at a time, so that the temporaries stay in the L2 cache (2048: 2.0 M tokens/s, 65536: 1.1 M).
_BLOCK_TOKENS: Final = 2048


@dataclass(frozen=True, eq=False)
class HashConstants:
    """Multipliers and buckets of all layers of one model.

    multipliers  [L, n] int64, by look-back distance
    primes       [L, n - 1, H] int64, by n-gram order and head
    """

    multipliers: Ids
    primes: Ids

    def __post_init__(self) -> None:
        for array in (self.multipliers, self.primes):
            array.setflags(write=False)

    @property
    def ngram_size(self) -> int:
        return int(self.multipliers.shape[1])

    @property
    def columns(self) -> int:
        """C: row ids of one token and layer; column = (order - 2) * heads + head."""
        return int(self.primes.shape[1] * self.primes.shape[2])

    @property
    def offsets(self) -> Ids:
        """First row of each column's bucket, [L, C] int64."""
        ends = np.cumsum(self.primes.reshape(len(self.primes), -1), axis=1)
        return np.hstack([np.zeros((len(ends), 1), np.int64), ends[:, :-1]])

    @property
    def row_counts(self) -> tuple[int, ...]:
        """Rows of each layer's table, without padding."""
        return tuple(int(rows) for rows in self.primes.sum(axis=(1, 2)))


class Vocabulary(Protocol):
    """What a family says about tokens."""

    @property
    def fill_code(self) -> int:
        """Code of a place that look-back may not see."""

    @property
    def blocks_self(self) -> bool:
        """Whether a barrier also hides the places before it from the barrier token itself."""

    def check(self, tokens: Ids, name: str) -> None:
        """Raises ConfigError naming the first id that is not a token of this model."""

    def encode(self, tokens: Ids) -> tuple[Ids, Flags]:
        """Codes, and which tokens are barriers that look-back does not cross; BEFORE_START may get any code."""


class NgramHasher:
    """Row ids of tokens for all table layers of one model; immutable, so threads may share it.

    Tokens are int64 (or anything that converts without loss). Row ids come back as [T, L, C] int64 with each
    layer's part contiguous: rows[:, i].reshape(-1) is a view, not a copy.
    """

    def __init__(self, constants: HashConstants, vocabulary: Vocabulary) -> None:
        self.constants = constants
        self.vocabulary = vocabulary
        self._multipliers = np.ascontiguousarray(constants.multipliers.T)[:, :, None]
        self._primes = constants.primes[:, None]
        self._offsets = constants.offsets.reshape(self._primes.shape)

    @property
    def ngram_size(self) -> int:
        """n: a token's ids depend on it and on n - 1 tokens before it."""
        return self.constants.ngram_size

    def sequence(self, tokens: TokenList, *, history: TokenList = ()) -> Ids:
        """Row ids of one sequence, or of a chunk of one, [T, L, C].

        tokens   [T]
        history  tokens before the chunk, oldest first, any number (the last n - 1 count)
        raises   ConfigError for an id outside the vocabulary
        """
        ids = as_tokens(tokens, "tokens")
        return self.packed(ids, [0, len(ids)], history=self.window(history)[None, 1:])

    def packed(self, tokens: TokenList, offsets: TokenList, *, history: npt.ArrayLike | None = None) -> Ids:
        """Row ids of several sequences (or chunks) in one array, [T, L, C].

        tokens   [T]; sequence k is tokens[offsets[k]:offsets[k + 1]]
        offsets  [S + 1], ascending from 0 to T
        history  [S, n - 1], oldest first, BEFORE_START where a sequence has fewer; None: all start here
        """
        ids, ends = as_tokens(tokens, "tokens"), as_tokens(offsets, "offsets")
        self.vocabulary.check(ids, "token")
        _check_offsets(ends, len(ids))
        past = self._history(history, len(ends) - 1)
        lookback = self.ngram_size - 1
        # Each sequence behind its own history: then place s before token t is simply s entries to the left.
        at = np.arange(len(ids)) + lookback * (1 + np.repeat(np.arange(len(past)), np.diff(ends)))
        stream = np.empty(len(ids) + past.size, np.int64)
        stream[at] = ids
        stream[ends[:-1, None] + lookback * np.arange(len(past))[:, None] + np.arange(lookback)] = past
        rows = self._empty(len(ids))
        for first in range(0, len(ids), _BLOCK_TOKENS):
            block = at[first : first + _BLOCK_TOKENS]
            windows = stream[block - np.arange(self.ngram_size)[:, None]]
            self._hash(self._codes(windows), rows[:, first : first + len(block)])
        return self._shaped(rows)

    def step(self, recent: npt.ArrayLike) -> Ids:
        """Row ids of one decode step, [B, L, C].

        recent  [B, n], each sequence's last n tokens, oldest first, the new token last; BEFORE_START on the left
                where a sequence is shorter (`window` makes one)
        """
        windows = as_tokens(recent, "recent", dimensions=2)
        if windows.shape[1] != self.ngram_size:
            raise ConfigError(f"recent: {windows.shape[1]} tokens per sequence, expected {self.ngram_size}")
        self.vocabulary.check(windows[:, -1], "token")
        self._history(windows[:, :-1], len(windows))
        rows = self._empty(len(windows))
        self._hash(self._codes(np.ascontiguousarray(windows.T[::-1])), rows)
        return self._shaped(rows)

    def window(self, tokens: TokenList) -> Ids:
        """The last n tokens of a sequence, [n] oldest first, filled on the left with BEFORE_START."""
        ids = as_tokens(tokens[-self.ngram_size :], "tokens")
        return np.concatenate([np.full(self.ngram_size - len(ids), BEFORE_START), ids])

    def _history(self, history: npt.ArrayLike | None, sequences: int) -> Ids:
        shape = (sequences, self.ngram_size - 1)
        if history is None:
            return np.full(shape, BEFORE_START)
        past = as_tokens(history, "history", dimensions=2)
        if past.shape != shape:
            raise ConfigError(f"history: shape {list(past.shape)}, expected {list(shape)}")
        known = past != BEFORE_START
        if known.all():  # the common case in decode, and a fifth of a step's time if it went the long way
            self.vocabulary.check(past.ravel(), "history token")
            return past
        if (known[:, :-1] > known[:, 1:]).any():
            raise ConfigError("history: a token stands to the left of a place before the start")
        self.vocabulary.check(past[known], "history token")
        return past

    def _codes(self, windows: Ids) -> Ids:
        """Codes by look-back distance; windows [n, T], row s holds the tokens s places back."""
        codes, barriers = self.vocabulary.encode(windows)
        hidden = barriers.copy()
        if not self.vocabulary.blocks_self:
            hidden[0] = False
        hidden |= windows == BEFORE_START
        np.logical_or.accumulate(hidden, axis=0, out=hidden)
        codes[hidden] = self.vocabulary.fill_code
        return codes

    def _empty(self, tokens: int) -> Ids:
        layers, orders, heads = self.constants.primes.shape
        return np.empty((layers, tokens, orders, heads), np.int64)

    def _hash(self, codes: Ids, out: Ids) -> None:
        """Row ids of codes [n, T] into out [L, T, n - 1, H]."""
        products = codes[:, None] * self._multipliers
        rolling = np.bitwise_xor.accumulate(products, axis=0)[1:]
        np.remainder(rolling.transpose(1, 2, 0)[..., None], self._primes, out=out)
        out += self._offsets

    def _shaped(self, rows: Ids) -> Ids:
        layers, tokens, _, _ = rows.shape
        return rows.reshape(layers, tokens, self.constants.columns).transpose(1, 0, 2)


def as_tokens(values: npt.ArrayLike, name: str, *, dimensions: int = 1) -> Ids:
    """int64 array of whole numbers; raises ConfigError for anything else instead of rounding it."""
    try:
        array = np.asarray(values)
    except ValueError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    if array.size == 0:
        array = array.astype(np.int64)
    if array.ndim != dimensions:
        raise ConfigError(f"{name}: {array.ndim} dimensions, expected {dimensions}")
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and (array >> np.uint64(63)).any()):
        raise ConfigError(f"{name}: {array.dtype} values, expected token ids (int64)")
    return array.astype(np.int64, copy=False)


def _check_offsets(ends: Ids, tokens: int) -> None:
    if len(ends) == 0 or ends[0] != 0 or ends[-1] != tokens or (np.diff(ends) < 0).any():
        raise ConfigError(f"offsets: must ascend from 0 to the number of tokens, {tokens}")


def check_range(tokens: Ids, name: str, vocab_size: int, *, also_from: int | None = None) -> None:
    """Raises ConfigError naming the first id outside [0, vocab_size) and, where also_from is given, below that."""
    if tokens.size == 0 or (tokens.min() >= 0 and tokens.max() < vocab_size):
        return
    bad = (tokens < 0) | (tokens >= vocab_size)
    if also_from is not None:
        bad &= tokens < also_from
    if bad.any():
        index = int(np.flatnonzero(bad)[0])
        images = "" if also_from is None else f" (image positions: from {also_from})"
        raise ConfigError(
            f"{name} {index}: id {int(tokens[index])} is outside the vocabulary 0 to {vocab_size - 1}{images}"
        )
