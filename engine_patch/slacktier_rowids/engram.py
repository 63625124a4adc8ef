# SPDX-License-Identifier: Apache-2.0
"""DeepSeek V4.1 Engram: layout from the model config, and the hasher over compressed token ids.

Must give the ids of EngramHasher in sglang 0.5.22 and 0.5.23 (srt/layers/engram.py), image tokens included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_rowids.config import ConfigJson, section, whole, wholes
from slacktier_rowids.ngram import BEFORE_START, Flags, HashConstants, Ids, NgramHasher, check_range
from slacktier_rowids.primes import bucket_sizes

# The engine gives image positions ids from here on; all of them hash as image_token_id does.
IMAGE_PAD_FIRST: Final = 1_000_000
_LAYER_SEED_STEP: Final = 10007


@dataclass(frozen=True, eq=False)
class EngramLayout:
    """Everything that maps tokens to rows, except the token map.

    layer_ids              model layers that have a table, as in the config
    row_counts             rows per layer, equal to the config's engram_num_embeddings
    head_dim               values per row
    compressed_vocab_size  distinct codes of the token map; every multiplier depends on it
    image_token_id         id that hides itself and all before it, or None for a text model
    """

    layer_ids: tuple[int, ...]
    row_counts: tuple[int, ...]
    head_dim: int
    pad_token_id: int
    compressed_vocab_size: int
    image_token_id: int | None
    constants: HashConstants

    @classmethod
    def from_config(cls, config: ConfigJson) -> Self:
        """The layout of a model config (config.json of the checkpoint, nested or flat).

        raises  ConfigError for missing or impossible fields, and where engram_num_embeddings is not the sum of the
                bucket sizes that the other fields give
        """
        flat = flatten(config)
        layer_ids = wholes(flat, "engram_layer_ids")
        if len(set(layer_ids)) != len(layer_ids):
            raise ConfigError(f"model config: engram_layer_ids repeats a layer: {list(layer_ids)}")
        ngram_size = whole(flat, "engram_max_ngram_size", least=2)
        compressed = whole(flat, "engram_compressed_vocab_size", least=1)
        primes = _primes(flat)
        constants = HashConstants(engram_multipliers(layer_ids, ngram_size, compressed), primes)
        if (stated := wholes(flat, "engram_num_embeddings")) != constants.row_counts:
            raise ConfigError(
                f"model config: engram_num_embeddings is {list(stated)}, "
                f"the hash buckets add up to {list(constants.row_counts)}"
            )
        return cls(
            layer_ids=layer_ids,
            row_counts=constants.row_counts,
            head_dim=whole(flat, "engram_head_dim", least=1),
            pad_token_id=whole(flat, "engram_pad_token_id", default=2),
            compressed_vocab_size=compressed,
            image_token_id=_image_token_id(flat),
            constants=constants,
        )

    @property
    def columns(self) -> int:
        """Row ids per token and layer."""
        return self.constants.columns


def flatten(config: ConfigJson) -> dict[str, Any]:
    """One level: text_config's fields, overridden by the top level's, as SGLang reads a V4.1 config."""
    return {**section(config, "text_config"), **config}


def scaled_config(config: ConfigJson, engram_vocab_size: int) -> dict[str, Any]:
    """The same model with smaller (or larger) tables: flat config with engram_num_embeddings worked out anew."""
    flat = {**flatten(config), "engram_vocab_size": engram_vocab_size}
    flat.pop("text_config", None)
    flat["engram_num_embeddings"] = [int(rows) for rows in _primes(flat).sum(axis=(1, 2))]
    return flat


def _primes(flat: ConfigJson) -> Ids:
    return bucket_sizes(
        whole(flat, "engram_vocab_size", least=2),
        layers=len(wholes(flat, "engram_layer_ids")),
        orders=whole(flat, "engram_max_ngram_size", least=2) - 1,
        heads=whole(flat, "engram_n_heads", least=1),
    )


def _image_token_id(flat: ConfigJson) -> int | None:
    """The image token of a model with a vision tower; a config that counts 0 vision layers has none."""
    tower = section(flat, "vision_config")
    layers = whole(flat, "vision_n_layers", default=whole(tower, "num_hidden_layers", default=1))
    return whole(flat, "image_token_id") if layers > 0 and flat.get("image_token_id") is not None else None


def engram_multipliers(layer_ids: tuple[int, ...], ngram_size: int, compressed_vocab_size: int) -> Ids:
    """Odd multipliers [L, n] int64, small enough that code * multiplier stays below 2^63.

    source  compute_hash_multipliers, sglang 0.5.22: one PCG64 stream per layer, seeded 10007 * layer id
    """
    bound = max(1, (2**63 - 1) // compressed_vocab_size // 2)
    draws = [np.random.default_rng(_LAYER_SEED_STEP * layer).integers(0, bound, ngram_size) for layer in layer_ids]
    return np.stack(draws) * 2 + 1


@dataclass(frozen=True, eq=False)
class _CompressedVocabulary:
    """Codes are compressed ids; an image token is PAD, and so is all that it hides, from itself too."""

    token_map: Ids
    fill_code: int
    image_token_id: int | None
    blocks_self: bool = True

    def check(self, tokens: Ids, name: str) -> None:
        also_from = None if self.image_token_id is None else IMAGE_PAD_FIRST
        check_range(tokens, name, len(self.token_map), also_from=also_from)

    def encode(self, tokens: Ids) -> tuple[Ids, Flags]:
        if self.image_token_id is None:
            return self.token_map[tokens], np.zeros(tokens.shape, np.bool_)
        images = (tokens == self.image_token_id) | (tokens >= IMAGE_PAD_FIRST)
        return self.token_map[np.where(images, BEFORE_START, tokens)], images


class EngramHasher(NgramHasher):
    """Row ids of V4.1 Engram; sequence, packed and step as in NgramHasher."""

    def __init__(self, layout: EngramLayout, token_map: npt.NDArray[np.integer[Any]]) -> None:
        """token_map  [V] token id -> compressed id; refused (ConfigError) unless it has the layout's number of codes"""
        codes = token_map.astype(np.int64)
        found, wanted = np.unique(codes), layout.compressed_vocab_size
        if not np.array_equal(found, np.arange(wanted)):
            span = f" from {found[0]} to {found[-1]}" if len(found) else ""
            raise ConfigError(
                f"token map: {len(found)} compressed ids{span}; the model config's engram_compressed_vocab_size is "
                f"{wanted} (0 to {wanted - 1}), and every row id depends on it",
                hint="use the tokenizer of this model",
            )
        if layout.pad_token_id >= len(codes):
            raise ConfigError(f"engram_pad_token_id {layout.pad_token_id} is outside the token map of {len(codes)}")
        vocabulary = _CompressedVocabulary(codes, int(codes[layout.pad_token_id]), layout.image_token_id)
        super().__init__(layout.constants, vocabulary)
        self.layout = layout
