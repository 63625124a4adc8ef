# SPDX-License-Identifier: Apache-2.0
"""What a test checkpoint consists of: config, files and tensors, in a family's real names and dtypes. No I/O.

The row counts follow from the config as in the engine, so a scaled checkpoint hashes and serves like the real one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier.pattern import pattern_seed
from slacktier_rowids.config import whole
from slacktier_rowids.engram import EngramLayout, flatten, scaled_config
from slacktier_rowids.models import QWEN38_CONFIG, V41_CONFIG, load_layout
from slacktier_rowids.ple import PleLayout
from slacktier_tierd.tables import E8M0_BLOCK, Family

QWEN_PARTS: Final = 8  # files of real checkpoints hold 512; the count is in the config
_QWEN_PREFIX: Final = "model.language_model.layers.{layer_id}.ple.ple_embedding.ngram_embedding"
_QWEN_SCALE: Final = 0.5  # the made table's weight_scale; exact in BF16


@dataclass(frozen=True, slots=True)
class PatternTensor:
    """Rows [row_first, +row_count) of a layer's pattern: its payloads, or its scales. Shape [row_count, row_values]."""

    name: str
    dtype: str
    row_first: int
    row_count: int
    row_bytes: int
    row_values: int
    seed: int
    is_scale: bool = False

    @property
    def byte_count(self) -> int:
        return self.row_count * self.row_bytes

    @property
    def shape(self) -> list[int]:
        return [self.row_count, self.row_values]


@dataclass(frozen=True, slots=True)
class ConstantTensor:
    """A small tensor with bytes of its own."""

    name: str
    dtype: str
    shape: list[int]
    value: bytes

    @property
    def byte_count(self) -> int:
        return len(self.value)


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """A checkpoint to write. files: name -> tensors in file order; rows: layer id -> rows."""

    family: Family
    config: dict[str, Any]
    user_seed: int
    rows: dict[int, int]
    files: dict[str, list[PatternTensor | ConstantTensor]] = field(default_factory=dict)

    @property
    def byte_count(self) -> int:
        return sum(tensor.byte_count for tensors in self.files.values() for tensor in tensors)


def v41_layout(
    config: Mapping[str, Any] | None, *, rows_max: int = 0, bytes_max: int = 0, layers: list[int] | None = None,
    user_seed: int = 0,
) -> CheckpointLayout:  # fmt: skip
    """A V4.1 checkpoint: the config's own tables, or scaled to at most rows_max per layer or bytes_max in all."""
    base = dict(V41_CONFIG if config is None else config)
    if layers:
        base = {**flatten(base), "engram_layer_ids": layers}
        base = scaled_config(base, whole(base, "engram_vocab_size", least=2))

    def build(vocab_size: int | None) -> CheckpointLayout:
        scaled = base if vocab_size is None else scaled_config(base, vocab_size)
        return _v41_files(scaled, EngramLayout.from_config(scaled), user_seed)

    return _fit(build, rows_max, bytes_max)


def qwen_layout(
    config: Mapping[str, Any] | None, *, dtype: str = "fp8", rows_max: int = 0, bytes_max: int = 0, user_seed: int = 0
) -> CheckpointLayout:
    """A Qwen4Exp checkpoint in FP8 (with a weight_scale) or BF16, scaled as v41_layout does."""
    base = dict(QWEN38_CONFIG if config is None else config)
    text = {**(base.get("text_config") or base)}
    text.setdefault("split_ngram_parts", QWEN_PARTS)
    text["ple_embedding_dtype"] = {"fp8": "float8_e4m3fn", "bf16": "bfloat16"}[dtype]

    def build(vocab_base: int | None) -> CheckpointLayout:
        scaled = text if vocab_base is None else {**text, "ngram_vocab_size_base": vocab_base}
        made = {**base, "text_config": scaled} if "text_config" in base else scaled
        layout = load_layout(made)
        if not isinstance(layout, PleLayout):
            raise ConfigError("model config: not a Qwen4Exp config: no ple_layer_ids")
        return _qwen_files(made, layout, dtype, user_seed, int(scaled["split_ngram_parts"]))

    return _fit(build, rows_max, bytes_max)


def _fit(build: Callable[[int | None], CheckpointLayout], rows_max: int, bytes_max: int) -> CheckpointLayout:
    """The largest hash bucket base whose tables fit; without a limit, the config as it is."""
    if not rows_max and not bytes_max:
        return build(None)

    def fits(base: int) -> bool:
        made = build(base)
        return (not rows_max or max(made.rows.values()) <= rows_max) and (not bytes_max or made.byte_count <= bytes_max)

    small, large = 2, max(rows_max, bytes_max) + 2
    large = min(large, 1 << 28)
    if not fits(small):
        raise ConfigError(f"no table fits: the smallest has {max(build(small).rows.values())} rows per layer")
    while large - small > 1:
        middle = (small + large) // 2
        small, large = (middle, large) if fits(middle) else (small, middle)
    return build(small)


def _v41_files(config: dict[str, Any], layout: EngramLayout, user_seed: int) -> CheckpointLayout:
    made = CheckpointLayout(Family.V41, config, user_seed, dict(zip(layout.layer_ids, layout.row_counts, strict=True)))
    dim, scales = layout.head_dim, -(-layout.head_dim // E8M0_BLOCK)
    for at, (layer_id, rows) in enumerate(made.rows.items(), 1):
        seed, prefix = pattern_seed(user_seed, layer_id), f"layers.{layer_id}.engram.embed"
        made.files[f"model-{at:05d}-of-{len(made.rows):05d}.safetensors"] = [
            PatternTensor(f"{prefix}.weight", "F8_E4M3", 0, rows, dim, dim, seed),
            PatternTensor(f"{prefix}.scale", "F8_E8M0", 0, rows, scales, scales, seed, is_scale=True),
        ]
    return made


def _qwen_files(
    config: dict[str, Any], layout: PleLayout, dtype: str, user_seed: int, parts: int
) -> CheckpointLayout:  # fmt: skip
    made = CheckpointLayout(
        Family.QWEN38, config, user_seed, dict(zip(layout.layer_ids, layout.padded_row_counts, strict=True))
    )  # fmt: skip
    name, row_bytes = ("F8_E4M3", layout.head_dim) if dtype == "fp8" else ("BF16", 2 * layout.head_dim)
    tensors: list[PatternTensor | ConstantTensor] = []
    for layer_id, rows in made.rows.items():
        prefix, seed, size = (
            _QWEN_PREFIX.format(layer_id=layer_id),
            pattern_seed(user_seed, layer_id),
            -(-rows // parts),
        )
        for part in range(parts):
            first = min(part * size, rows)
            count = min(size, rows - first)
            tensors.append(
                PatternTensor(f"{prefix}.shard_{part}.weight", name, first, count, row_bytes, layout.head_dim, seed)
            )  # fmt: skip
        if dtype == "fp8":
            scale = struct.pack("<f", _QWEN_SCALE)[2:]
            tensors.append(ConstantTensor(f"{prefix}.weight_scale", "BF16", [1], scale))
    made.files["model.safetensors"] = tensors
    return made
