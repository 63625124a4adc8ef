# SPDX-License-Identifier: Apache-2.0
"""Small regions of pattern rows, written page by page: any superblock, any state, without staging."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np

from slacktier.page import PAGE_BYTES, RowFormat, State, Superblock, encode_superblock
from slacktier_native.pages import PageCodec, pattern_fill

ROWS = 3000
SEEDS = {1: 101, 14: 114}


def write_region(path: Path, sb: Superblock, seed: int) -> Path:
    """A region of pattern rows at path, in the superblock's state."""
    weights = np.empty((sb.row_count, sb.payload_bytes), np.uint8)
    scales = np.empty((sb.row_count, sb.scale_bytes), np.uint8)
    pattern_fill(seed, 0, sb.row_count, sb.payload_bytes, sb.scale_bytes, weights, scales)
    pages = np.empty(sb.page_count * PAGE_BYTES, np.uint8)
    PageCodec(sb).encode(0, sb.page_count, weights, scales, pages)
    path.write_bytes(encode_superblock(sb) * 2 + pages.tobytes())
    return path


def superblock(layer_id: int, **changes: object) -> Superblock:
    sb = Superblock(
        table_uuid=uuid.UUID(int=7), layer_id=layer_id, epoch=1, row_count=ROWS, payload_bytes=256, scale_bytes=8,
        row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="test", revision="", source="pattern",
    )  # fmt: skip
    sb = replace(sb, **changes)  # type: ignore[arg-type]
    return replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)
