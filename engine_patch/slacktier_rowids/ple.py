# SPDX-License-Identifier: Apache-2.0
"""Qwen4Exp PLE (Qwen3.8): layout from the model config, and the hasher over raw token ids.

Must give the ids of Qwen4ExpNGramEmbedding in sglang 0.5.22 and 0.5.23 (srt/models/qwen4_exp.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from slacktier.errors import ConfigError
from slacktier_rowids.config import ConfigJson, section, whole, wholes
from slacktier_rowids.ngram import Flags, HashConstants, Ids, NgramHasher, check_range
from slacktier_rowids.primes import bucket_sizes

_MASK: Final = (1 << 64) - 1
_GOLDEN_GAMMA: Final = 0x9E3779B97F4A7C15
_LAYER_SEED_STEP: Final = 10007


@dataclass(frozen=True, eq=False)
class PleLayout:
    """Everything that maps tokens to rows.

    layer_ids          0-based model layers that have a table (the config's ple_layer_ids count from 1)
    row_counts         rows per layer that the hash can name
    padded_row_counts  rows per layer in the checkpoint
    head_dim           values per row
    """

    layer_ids: tuple[int, ...]
    row_counts: tuple[int, ...]
    padded_row_counts: tuple[int, ...]
    head_dim: int
    vocab_size: int
    eos_token_id: int
    constants: HashConstants

    @classmethod
    def from_config(cls, config: ConfigJson) -> Self:
        """The layout of a model config; a nested text_config is authoritative, as in SGLang.

        raises  ConfigError for missing or impossible fields
        """
        text = section(config, "text_config") or config
        layer_ids = tuple(sorted({layer - 1 for layer in wholes(text, "ple_layer_ids", least=1)}))
        ngram_size = whole(text, "ngram_size", least=2, default=3)
        heads = whole(text, "heads_per_ngram", least=1, default=8)
        vocab_size, eos_token_id = whole(text, "vocab_size", least=1), whole(text, "eos_token_id")
        if eos_token_id >= vocab_size:
            raise ConfigError(f"model config: eos_token_id {eos_token_id} is outside vocab_size {vocab_size}")
        primes = bucket_sizes(
            whole(text, "ngram_vocab_size_base", least=2, default=20_000_000),
            layers=len(layer_ids),
            orders=ngram_size - 1,
            heads=heads,
        )
        seed = whole(text, "seed", default=1234)
        multipliers = [ple_multipliers(seed, index, ngram_size, vocab_size) for index in range(len(layer_ids))]
        constants = HashConstants(np.array(multipliers), primes)
        step = whole(text, "make_ngram_vocab_size_divisible_by", least=1, default=128)
        return cls(
            layer_ids=layer_ids,
            row_counts=constants.row_counts,
            padded_row_counts=tuple(-(-rows // step) * step for rows in constants.row_counts),
            head_dim=_head_dim(text, constants.columns),
            vocab_size=vocab_size,
            eos_token_id=eos_token_id,
            constants=constants,
        )

    @property
    def columns(self) -> int:
        """Row ids per token and layer."""
        return self.constants.columns


def _head_dim(text: ConfigJson, columns: int) -> int:
    field = "hidden_size" if text.get("ple_embed_dim") is None else "ple_embed_dim"
    dim = whole(text, field, least=1)
    if dim % columns:
        raise ConfigError(f"model config: {field} {dim} does not divide into {columns} hash columns")
    return dim // columns


def ple_multipliers(seed: int, layer_index: int, ngram_size: int, vocab_size: int) -> list[int]:
    """Odd multipliers of one layer by look-back distance, small enough that id * multiplier stays below 2^63.

    source  Qwen4ExpNGramEmbedding._build_layer_multipliers, sglang 0.5.22: splitmix64 over seed + 10007 * index
    """
    bound = max(1, (2**63 - 1) // vocab_size // 2)
    base = seed + _LAYER_SEED_STEP * layer_index
    return [2 * (_splitmix64(base + _GOLDEN_GAMMA * (at + 1)) % bound) + 1 for at in range(ngram_size)]


def _splitmix64(state: int) -> int:
    mixed = (state + _GOLDEN_GAMMA) & _MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> shift)) * factor & _MASK
    return mixed ^ (mixed >> 31)


@dataclass(frozen=True, eq=False)
class _RawVocabulary:
    """Codes are token ids. EOS hides what is before it from later tokens, not from itself."""

    vocab_size: int
    fill_code: int
    blocks_self: bool = False

    def check(self, tokens: Ids, name: str) -> None:
        check_range(tokens, name, self.vocab_size)

    def encode(self, tokens: Ids) -> tuple[Ids, Flags]:
        return tokens.copy(), tokens == self.fill_code


class PleHasher(NgramHasher):
    """Row ids of Qwen4Exp PLE; sequence, packed and step as in NgramHasher."""

    def __init__(self, layout: PleLayout) -> None:
        super().__init__(layout.constants, _RawVocabulary(layout.vocab_size, layout.eos_token_id))
        self.layout = layout
