# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench record`: what a row's checksum and tag cost, per row, beside a plain copy and zlib's CRC32.

V4.1 rows (256 B and 8 scales) in pages that fit no cache, one thread, blocks of the arms interleaved.
"""

from __future__ import annotations

import statistics
import time
import uuid
import zlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from slacktier.page import PAGE_BYTES, RowFormat, Superblock
from slacktier_native._lib import library
from slacktier_native.pages import PageCodec, pattern_fill

PAYLOAD_BYTES: Final = 256
SCALE_BYTES: Final = 8


def _superblock(page_count: int) -> Superblock:
    return Superblock(
        table_uuid=uuid.UUID(int=1), layer_id=1, epoch=1, row_count=page_count * 15, payload_bytes=PAYLOAD_BYTES,
        scale_bytes=SCALE_BYTES, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="pattern",
    )  # fmt: skip


def _arms(sb: Superblock) -> dict[str, Callable[[], object]]:
    """One pass over all rows by each arm."""
    codec, rows = PageCodec(sb), sb.row_count
    weights, scales = np.empty((rows, PAYLOAD_BYTES), np.uint8), np.empty((rows, SCALE_BYTES), np.uint8)
    pattern_fill(1, 0, rows, PAYLOAD_BYTES, SCALE_BYTES, weights, scales)
    pages, copied = np.zeros(sb.page_count * PAGE_BYTES, np.uint8), np.zeros(sb.page_count * PAGE_BYTES, np.uint8)
    codec.encode(0, sb.page_count, weights, scales, pages)
    crc32c, address = library().st_crc32c, pages.ctypes.data
    return {
        "pack: copy, tag, CRC32C": lambda: codec.encode(0, sb.page_count, weights, scales, pages),
        "check: header, tag, CRC32C, padding": lambda: codec.verify(0, sb.page_count, pages),
        "unpack: copy out": lambda: codec.unpack(0, sb.page_count, pages, weights, scales),
        "CRC32C alone, whole buffer": lambda: crc32c(0, address, pages.nbytes),
        "memcpy of the pages": lambda: np.copyto(copied, pages),
        "zlib.crc32 of the pages": lambda: zlib.crc32(pages.data),
    }


def run(*, mebibytes: int = 128, blocks: int = 9, seed: int = 1) -> dict[str, Any]:
    """ns per row and GiB/s of pages per arm, medians over interleaved blocks.

    returns  {"rows", "row_bytes", "record_bytes", "arms": {name: {"ns_per_row", "gib_per_s", "ratio_to_memcpy"}}}
    """
    page_count = mebibytes * (1 << 20) // PAGE_BYTES
    sb = _superblock(page_count)
    arms = _arms(sb)
    rng, seconds = np.random.default_rng(seed), {name: list[float]() for name in arms}
    for name in (*arms, *(n for _ in range(blocks) for n in rng.permutation(list(arms)))):
        start = time.perf_counter()
        arms[name]()
        seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken[1:]) for name, taken in seconds.items()}  # the first one warms up
    memcpy_s = medians["memcpy of the pages"]
    return {
        "rows": sb.row_count,
        "row_bytes": sb.row_bytes,
        "record_bytes": sb.record_bytes,
        "arms": {
            name: {
                "ns_per_row": taken_s / sb.row_count * 1e9,
                "gib_per_s": page_count * PAGE_BYTES / taken_s / (1 << 30),
                "ratio_to_memcpy": taken_s / memcpy_s,
            }
            for name, taken_s in medians.items()
        },
    }
