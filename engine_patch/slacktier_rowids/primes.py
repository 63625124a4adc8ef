# SPDX-License-Identifier: Apache-2.0
"""Bucket sizes: every hash head of every layer has a prime of its own, drawn from one ascending sequence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from math import isqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError

# Trial division takes milliseconds up to here; released tables use 16 to 20 million.
BUCKET_BASE_MAX: Final = 1 << 31


def is_prime(number: int) -> bool:
    if number < 4:
        return number > 1
    return number % 2 == 1 and all(number % divisor for divisor in range(3, isqrt(number) + 1, 2))


def primes_from(first: int) -> Iterator[int]:
    """Primes >= first, ascending."""
    return filter(is_prime, count(first))


def bucket_sizes(base: int, *, layers: int, orders: int, heads: int, skip_layers: int = 0) -> npt.NDArray[np.int64]:
    """Prime bucket sizes, [layers, orders, heads] int64: the primes >= base, in that order.

    orders       n-gram orders (2, 3, ... n), so n - 1
    skip_layers  layers of the same table family whose primes come before these
    raises       ConfigError if base is out of range
    source       EngramLayout.from_config and Qwen4ExpNGramEmbedding, sglang 0.5.22
    """
    if not 2 <= base <= BUCKET_BASE_MAX:
        raise ConfigError(f"hash bucket base: {base}, expected 2 to {BUCKET_BASE_MAX}")
    per_layer = orders * heads
    primes = islice(primes_from(base), skip_layers * per_layer, (skip_layers + layers) * per_layer)
    return np.fromiter(primes, np.int64).reshape(layers, orders, heads)
