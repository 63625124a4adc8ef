# SPDX-License-Identifier: Apache-2.0
"""Small checkpoints and tables for tests of staging, and regions read back row by row with the reference codec."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slacktier.page import PAGE_BYTES, RowFormat, Superblock, decode_row
from slacktier.pattern import pattern_seed
from slacktier.region import open_region
from slacktier_tierd.sources import PatternSource
from slacktier_tierd.tables import Table

V41_TINY = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_vocab_size": 1000,
    "engram_n_heads": 8,
    "engram_head_dim": 32,
    "engram_compressed_vocab_size": 99,
    "engram_num_embeddings": [1, 1],
}


@dataclass(frozen=True)
class RawTensor:
    """One tensor as a safetensors file has it."""

    dtype: str
    shape: list[int]
    data: bytes


def write_safetensors(path: Path, tensors: dict[str, RawTensor], metadata: dict[str, str] | None = None) -> Path:
    """A safetensors file made by hand, so that tests can also make wrong ones."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + len(tensor.data)]}
        at += len(tensor.data)
    raw = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + b"".join(tensor.data for tensor in tensors.values()))
    return path


def random_bytes(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(count)


def v41_tensors(layer_id: int, rows: int, dim: int = 32, seed: int = 0, prefix: str = "") -> dict[str, RawTensor]:
    """Weight and scale of one layer, random bytes."""
    name = f"{prefix}layers.{layer_id}.engram.embed"
    scales = -(-dim // 32)
    return {
        f"{name}.weight": RawTensor("F8_E4M3", [rows, dim], random_bytes(rows * dim, seed)),
        f"{name}.scale": RawTensor("F8_E8M0", [rows, scales], random_bytes(rows * scales, seed + 1)),
    }


def pattern_table(
    rows: int, *, layer_id: int = 1, payload_bytes: int = 256, scale_bytes: int = 8, seed: int = 0, model: str = "m"
) -> PatternSource:
    """A table of the pattern, without a file."""
    table = Table(
        model, "r1", layer_id, rows, payload_bytes, scale_bytes, RowFormat.RAW, ("t",), 1.0, f"test pattern={seed}"
    )
    return PatternSource(table, pattern_seed(seed, layer_id))


def read_page(sb: Superblock, stripes: Sequence[bytes], page_id: int) -> bytes:
    offset = sb.page_offset(page_id)
    return stripes[page_id % sb.stripe_count][offset : offset + PAGE_BYTES]


def rows_of(paths: Sequence[Path]) -> list[bytes]:
    """Every row of a complete region, each checked by decode_row."""
    with open_region(paths) as region:
        sb = region.superblock
        stripes = [path.read_bytes() for path in region.paths]
    pages = [read_page(sb, stripes, page_id) for page_id in range(sb.page_count)]
    return [decode_row(sb, pages[row_id // sb.rows_per_page], row_id) for row_id in range(sb.row_count)]
