# SPDX-License-Identifier: Apache-2.0
"""Small models of both table families, and the row-id rule in plain Python: one token at a time, whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slacktier_rowids.engram import EngramHasher, EngramLayout, scaled_config
from slacktier_rowids.ple import PleHasher, PleLayout

IMAGE = 39
EOS = 5
PAD = 1

ENGRAM_CONFIG = scaled_config(
    {
        "engram_layer_ids": [1, 4, 9],
        "engram_max_ngram_size": 4,
        "engram_n_heads": 3,
        "engram_head_dim": 16,
        "engram_pad_token_id": PAD,
        "engram_compressed_vocab_size": 17,
        "image_token_id": IMAGE,
    },
    50,
)
# Two or three tokens share each code, as tokens that differ in case or accents do.
TOKEN_MAP = np.arange(40) * 7 % 17

PLE_CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "eos_token_id": EOS,
    "ple_layer_ids": [3, 6],
    "ple_embed_dim": 96,
    "ngram_size": 3,
    "heads_per_ngram": 4,
    "ngram_vocab_size_base": 60,
}


def engram_hasher(**changes: Any) -> EngramHasher:
    return EngramHasher(EngramLayout.from_config(ENGRAM_CONFIG | changes), TOKEN_MAP)


def ple_hasher(**changes: Any) -> PleHasher:
    return PleHasher(PleLayout.from_config(PLE_CONFIG | changes))


def reference_rows(hasher: Any, tokens: Sequence[int]) -> list[Any]:
    """Row ids [T][L][C] by the rule's definition."""
    codes = _engram_codes if isinstance(hasher, EngramHasher) else _ple_codes
    return [_rows(hasher, codes(hasher, tokens[: at + 1])) for at in range(len(tokens))]


def _rows(hasher: Any, codes: list[int]) -> list[list[int]]:
    constants, rows = hasher.constants, []
    for layer in range(len(constants.primes)):
        row, offset, mixed = [], 0, codes[0] * int(constants.multipliers[layer, 0])
        for back in range(1, len(codes)):
            mixed ^= codes[back] * int(constants.multipliers[layer, back])
            for prime in constants.primes[layer, back - 1].tolist():
                row.append(mixed % prime + offset)
                offset += prime
        rows.append(row)
    return rows


def _engram_codes(hasher: Any, tokens: Sequence[int]) -> list[int]:
    """Codes by look-back; from the first image on, and before the start, all is PAD."""
    pad, codes, hidden = int(TOKEN_MAP[PAD]), [], False
    for back in range(hasher.ngram_size):
        token = tokens[-1 - back] if back < len(tokens) else None
        hidden = hidden or token is None or token == IMAGE or token >= 1_000_000
        codes.append(pad if hidden else int(TOKEN_MAP[token]))
    return codes


def _ple_codes(hasher: Any, tokens: Sequence[int]) -> list[int]:
    """Codes by look-back; from the first EOS before the token on, and before the start, all is EOS."""
    codes, hidden = [tokens[-1]], False
    for back in range(1, hasher.ngram_size):
        token = tokens[-1 - back] if back < len(tokens) else EOS
        hidden = hidden or token == EOS
        codes.append(EOS if hidden else token)
    return codes
