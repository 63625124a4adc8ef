# SPDX-License-Identifier: Apache-2.0
"""Spatially hashed sampling at a fixed rate (SHARDS, Waldspurger et al., FAST 2015).

A row is looked at or not by a hash of its id alone, so every use of a looked-at row is seen, and a cache of n rows is
simulated by one of rate * n. The table's hash heads are cut first: each n-gram has one row in every head, so one head
of eight is a sample in which no n-gram, however frequent, counts too much or too little. Only below one head's rate are
rows picked by hash. They are picked by page, so that rows per page can be told from a sample too.

A count of misses is divided by the rate. Shares are of all lookups, whose number is known, not of the looked-at ones:
whether the sample holds one very frequent row or not then hardly matters, since such a row does not miss (the
correction of the SHARDS paper, section 3.4).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError

U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Sampling:
    """Which rows are looked at.

    heads  hash heads looked at, the first ones, of head_count
    share  share of those heads' pages
    seed   of the hash that picks pages
    """

    heads: int
    head_count: int
    share: Fraction
    seed: int = 1

    @classmethod
    def at(cls, rate: Fraction, head_count: int, seed: int = 1) -> Self:
        """The sampling of a rate in (0, 1]; raises ConfigError for another."""
        if not 0 < rate <= 1:
            raise ConfigError(f"sampling rate {rate}: expected more than 0 and at most 1")
        heads = math.ceil(rate * head_count)
        return cls(heads, head_count, rate * head_count / heads, seed)

    @property
    def rate(self) -> Fraction:
        return Fraction(self.heads, self.head_count) * self.share

    def scaled(self, rows: int) -> int:
        """Rows of the simulated cache; raises ConfigError where too few are left for it to stand for the whole one."""
        scaled = round(rows * self.rate)
        if scaled < ROWS_MIN:
            raise ConfigError(
                f"{rows} cache rows at sampling rate {self.rate} are {scaled}; fewer than {ROWS_MIN} say nothing",
                hint="sample at a higher rate, or --exact",
            )
        return scaled

    def picks(self, pages: U32) -> npt.NDArray[np.bool_]:
        """Which of these pages are looked at."""
        return mix32(pages ^ mix32(np.full(1, self.seed, np.uint32))) < int(self.share * 2**32)


ROWS_MIN = 64


def parse_rate(text: str) -> Fraction:
    """A rate as `1/8` or `0.125`; raises ConfigError."""
    try:
        return Fraction(text.strip())
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"sampling rate {text}: expected a fraction such as 1/8 or 0.125") from None


def mix32(values: U32) -> U32:
    """A bijective 32-bit mix of each value (the finalizer of MurmurHash3)."""
    mixed: U32 = values ^ (values >> np.uint32(16))
    mixed = mixed * np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed
