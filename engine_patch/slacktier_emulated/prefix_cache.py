# SPDX-License-Identifier: Apache-2.0
"""Which prefixes of past sequences need no prefill: a chain of hashed 16-token blocks, least recently used out first.

A block's key covers its tokens and all tokens before them, so equal keys mean equal prefixes. What is bounded is the
number of tokens kept; running sequences do not pin their blocks (a real engine's KV memory is not modelled).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]
BLOCK_TOKENS: Final = 16
_KEY_BYTES: Final = 16


def _key(parent: bytes, block: bytes) -> bytes:
    return hashlib.blake2b(parent + block, digest_size=_KEY_BYTES).digest()


class PrefixCache:
    """An LRU of blocks, `capacity_tokens` at most; 0 turns it off."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity_blocks = capacity_tokens // BLOCK_TOKENS
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    @property
    def tokens(self) -> int:
        """Tokens held now."""
        return len(self._blocks) * BLOCK_TOKENS

    def match(self, tokens: Tokens) -> list[bytes]:
        """Keys of the longest cached prefix; its length in tokens is BLOCK_TOKENS times their number.

        At least one token is left over: an engine needs one to compute, or it has nothing to sample from.
        """
        chain: list[bytes] = []
        raw = np.ascontiguousarray(tokens, dtype=np.uint32).data.cast("B")
        parent = b""
        for first in range(0, (len(tokens) - 1) // BLOCK_TOKENS):
            parent = _key(parent, bytes(raw[first * BLOCK_TOKENS * 4 : (first + 1) * BLOCK_TOKENS * 4]))
            if parent not in self._blocks:
                break
            chain.append(parent)
        self._touch(chain)
        return chain

    def extend(self, chain: list[bytes], tokens: Tokens) -> None:
        """Keep all full blocks of `tokens`, whose first blocks are `chain`; the chain grows to cover them."""
        raw = np.ascontiguousarray(tokens, dtype=np.uint32).data.cast("B")
        for first in range(len(chain), len(tokens) // BLOCK_TOKENS):
            parent = chain[-1] if chain else b""
            chain.append(_key(parent, bytes(raw[first * BLOCK_TOKENS * 4 : (first + 1) * BLOCK_TOKENS * 4])))
        self._touch(chain[: self._capacity_blocks])

    def _touch(self, chain: list[bytes]) -> None:
        # Last block first, so that the start of a prefix, which other sequences may share, is the last to go.
        for key in reversed(chain):
            self._blocks[key] = None
            self._blocks.move_to_end(key)
        while len(self._blocks) > self._capacity_blocks:
            self._blocks.popitem(last=False)
