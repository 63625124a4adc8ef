# SPDX-License-Identifier: Apache-2.0
"""The bench's table: one set of rows, as the engine holds it (pinned weights and scales) and as SlackTier's pages.

Row r of the first 256 holds all 256 codes under scale exponent r, so that every pair is looked up somewhere; the
rest follow the test pattern. One table stands under both layers: memory for two is rarely there.
"""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np

from slacktier.errors import ConfigError
from slacktier.page import RowFormat, State, Superblock
from slacktier_engine.decode_bench.device import Device
from slacktier_native.memory_table import MemoryTable, map_memory
from slacktier_native.pages import pattern_fill

PAYLOAD_BYTES: Final = 256
SCALE_BYTES: Final = 8
PAIR_ROWS: Final = 256
_SEED: Final = 41
_ROWS_PER_TASK: Final = 1 << 18


def _superblock(layer_id: int, row_count: int) -> Superblock:
    sb = Superblock(
        table_uuid=uuid.UUID(int=_SEED), layer_id=layer_id, epoch=1, row_count=row_count, payload_bytes=PAYLOAD_BYTES,
        scale_bytes=SCALE_BYTES, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="bench",
    )  # fmt: skip
    return replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)


class BenchTable:
    """stock_bytes of pinned weights and scales, and the same rows as pages."""

    def __init__(self, stock_bytes: int, device: Device) -> None:
        self._device = device
        self.row_count = stock_bytes // (PAYLOAD_BYTES + SCALE_BYTES)
        if not PAIR_ROWS < self.row_count < 1 << 32:
            raise ConfigError(f"table of {stock_bytes} bytes: {self.row_count} rows, expected 257 to 2^32 - 1")
        self._weights = map_memory(self.row_count * PAYLOAD_BYTES).reshape(self.row_count, PAYLOAD_BYTES)
        self._scales = map_memory(self.row_count * SCALE_BYTES).reshape(self.row_count, SCALE_BYTES)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._fill, range(0, self.row_count, _ROWS_PER_TASK)))
        self._weights[:PAIR_ROWS] = np.arange(256, dtype=np.uint8)
        self._scales[:PAIR_ROWS] = np.arange(PAIR_ROWS, dtype=np.uint8)[:, None]
        self.pages = MemoryTable(_superblock(1, self.row_count), self._weights, self._scales)
        device.pin(self.weights, self._weights.nbytes)
        device.pin(self.scales, self._scales.nbytes)

    def _fill(self, first: int) -> None:
        end = min(first + _ROWS_PER_TASK, self.row_count)
        pattern_fill(
            _SEED, first, end - first, PAYLOAD_BYTES, SCALE_BYTES, self._weights[first:end], self._scales[first:end]
        )

    def first_rows(self, layer_id: int, row_count: int) -> MemoryTable:
        """The first rows as a table of their own that a region of this layer can be written from."""
        sb = _superblock(layer_id, row_count)
        return MemoryTable(sb, self._weights[:row_count], self._scales[:row_count])

    @property
    def weights(self) -> int:
        """Address, the same on host and device."""
        return int(self._weights.ctypes.data)

    @property
    def scales(self) -> int:
        return int(self._scales.ctypes.data)

    @property
    def stock_bytes(self) -> int:
        return self._weights.nbytes + self._scales.nbytes

    def close(self) -> None:
        """Unpin; no core may use the pages any more."""
        self._device.unpin(self.weights)
        self._device.unpin(self.scales)
