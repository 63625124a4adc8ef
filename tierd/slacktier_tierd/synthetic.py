# SPDX-License-Identifier: Apache-2.0
"""Tables that no checkpoint holds: rows made from the pattern, in a family's shape and of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slacktier.errors import ConfigError
from slacktier.page import RowFormat
from slacktier.pattern import pattern_seed, source_text
from slacktier_rowids.models import QWEN38_CONFIG, V41_CONFIG, load_layout
from slacktier_rowids.ple import PleLayout
from slacktier_tierd.sources import PatternSource
from slacktier_tierd.tables import Table


@dataclass(frozen=True, slots=True)
class RowShape:
    """Bytes of a row and what they mean."""

    payload_bytes: int
    scale_bytes: int
    row_format: RowFormat


SHAPES: Final[dict[str, RowShape]] = {
    "v41": RowShape(256, 8, RowFormat.FP8_E4M3_BLOCK_E8M0),
    "qwen3.8": RowShape(160, 0, RowFormat.FP8_E4M3),
    "qwen3.8-bf16": RowShape(320, 0, RowFormat.BF16),
}


def synthetic_source(
    kind: str, layer_id: int, *, row_count: int = 0, shape: RowShape | None = None, user_seed: int = 0, model: str = "",
    revision: str = "",
) -> PatternSource:  # fmt: skip
    """Rows from the pattern; row_count 0 stands for the released model's count of that layer.

    kind    a name in SHAPES, or "raw" with a shape
    raises  ConfigError for a name or a layer that the released model does not have
    """
    shape = SHAPES.get(kind) if shape is None else shape
    if shape is None:
        raise ConfigError(f"synthetic table {kind!r}: expected {', '.join(SHAPES)}, or raw with --payload-bytes")
    table = Table(
        model or f"synthetic-{kind}", revision, layer_id, row_count or _released_rows(kind, layer_id),
        shape.payload_bytes, shape.scale_bytes, shape.row_format, (f"pattern-{user_seed}",), 1.0,
        source_text("synthetic", user_seed),
    )  # fmt: skip
    return PatternSource(table, pattern_seed(user_seed, layer_id))


def _released_rows(kind: str, layer_id: int) -> int:
    config = V41_CONFIG if kind == "v41" else QWEN38_CONFIG
    layout = load_layout(config)
    counts = layout.padded_row_counts if isinstance(layout, PleLayout) else layout.row_counts
    if kind not in SHAPES or layer_id not in layout.layer_ids:
        raise ConfigError(
            f"synthetic table {kind!r}: no released row count for layer {layer_id}; it has {list(layout.layer_ids)}",
            hint="--rows gives one",
        )
    return counts[layout.layer_ids.index(layer_id)]
