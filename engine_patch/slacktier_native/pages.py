# SPDX-License-Identifier: Apache-2.0
"""Bulk codec for data pages and the test pattern; each call releases the GIL. Layout: docs/page-format.md."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, Superblock
from slacktier_native._lib import CLayout, library

Bytes = npt.NDArray[np.uint8]

FAULTS: Final = {
    1: "the page was never staged",
    2: "page header is not this page's",
    3: "row tag is another row's",
    4: "row checksum does not match",
    5: "padding or unused bytes are not zero",
}


def _address(array: npt.NDArray[Any] | None, byte_count: int, name: str) -> int | None:
    if array is None:
        return None
    if not array.flags.c_contiguous or array.nbytes < byte_count:
        raise ConfigError(f"{name}: {array.nbytes} bytes, expected at least {byte_count}, contiguous")
    return array.ctypes.data


class PageCodec:
    """Encode, verify and unpack whole pages of one region."""

    def __init__(self, sb: Superblock) -> None:
        self.superblock = sb
        self._layout = CLayout()
        rc = library().st_layout_init(
            ctypes.byref(self._layout), sb.row_count, sb.payload_bytes, sb.scale_bytes, sb.table_uuid.bytes,
            sb.layer_id, sb.epoch, sb.stripe_count,
        )  # fmt: skip
        if rc != 0:
            raise ConfigError(f"region geometry refused: {os.strerror(-rc)}")

    @property
    def layout(self) -> CLayout:
        return self._layout

    def rows_in(self, page_first: int, page_count: int) -> int:
        """Rows that these pages hold; the last page of a region may be short."""
        sb = self.superblock
        first = page_first * sb.rows_per_page
        return min(sb.row_count, first + page_count * sb.rows_per_page) - first

    def encode(self, page_first: int, page_count: int, weights: Bytes, scales: Bytes | None, out: Bytes) -> None:
        """Rows of pages [page_first, +page_count) into out.

        weights  at least [rows, payload_bytes] uint8, contiguous; scales [rows, scale_bytes] or None
        out      [page_count * 4096] uint8
        """
        rows, sb = self.rows_in(page_first, page_count), self.superblock
        rc = library().st_pages_encode(
            ctypes.byref(self._layout), page_first, page_count,
            _address(weights, rows * sb.payload_bytes, "weights"), _address(scales, rows * sb.scale_bytes, "scales"),
            _address(out, page_count * PAGE_BYTES, "out"),
        )  # fmt: skip
        if rc != 0:
            raise ConfigError(f"pages {page_first} to {page_first + page_count}: past the table's {sb.page_count}")

    def encode_records(self, row_ids: npt.NDArray[np.uint32], rows: Bytes) -> Bytes:
        """Records [N, record_bytes] of rows [N, row_bytes] uint8, contiguous, whose ids are row_ids [N]."""
        sb, ids = self.superblock, np.ascontiguousarray(row_ids, np.uint32)
        records = np.empty((ids.size, sb.record_bytes), np.uint8)
        rc = library().st_records_encode(
            ctypes.byref(self._layout), ids.ctypes.data, ids.size, _address(rows, ids.size * sb.row_bytes, "rows"),
            records.ctypes.data,
        )  # fmt: skip
        if rc != 0:
            raise ConfigError(f"layer {sb.layer_id}: row id {ids.max()}, expected 0 to {sb.row_count - 1}")
        return records

    def verify(self, page_first: int, page_count: int, pages: Bytes) -> None:
        """Check every bit of the pages; raises ContractError naming the first bad page and row."""
        fault, page_id, row_id = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_uint64()
        rc = library().st_pages_verify(
            ctypes.byref(self._layout), page_first, page_count, _address(pages, page_count * PAGE_BYTES, "pages"),
            ctypes.byref(fault), ctypes.byref(page_id), ctypes.byref(row_id),
        )  # fmt: skip
        if fault.value:
            raise ContractError(
                f"layer {self.superblock.layer_id} page {page_id.value} row {row_id.value}: {FAULTS[fault.value]}",
                hint="stage the table again",
            )
        if rc != 0:
            raise ConfigError(f"pages {page_first} to {page_first + page_count}: past the table's end")

    def unpack(self, page_first: int, page_count: int, pages: Bytes, weights: Bytes, scales: Bytes | None) -> int:
        """Payloads and scales of verified pages, packed as in the source; returns the number of rows."""
        rows, sb = self.rows_in(page_first, page_count), self.superblock
        rc = library().st_pages_unpack(
            ctypes.byref(self._layout), page_first, page_count, _address(pages, page_count * PAGE_BYTES, "pages"),
            _address(weights, rows * sb.payload_bytes, "weights"), _address(scales, rows * sb.scale_bytes, "scales"),
        )  # fmt: skip
        if rc != 0:
            raise ConfigError(f"pages {page_first} to {page_first + page_count}: past the table's end")
        return rows


def pattern_fill(
    seed: int,
    row_first: int,
    row_count: int,
    payload_bytes: int,
    scale_bytes: int,
    weights: Bytes,
    scales: Bytes | None,
) -> None:
    """Rows [row_first, +row_count) of the test table with this seed (one seed per layer)."""
    library().st_pattern_fill(
        seed, row_first, row_count, payload_bytes, scale_bytes,
        _address(weights, row_count * payload_bytes, "weights"), _address(scales, row_count * scale_bytes, "scales"),
    )  # fmt: skip


def pattern_check(
    seed: int, row_ids: npt.NDArray[np.int64], rows: Bytes, payload_bytes: int, scale_bytes: int
) -> tuple[int, int]:
    """(rows that differ from the pattern, index of the first or -1).

    row_ids  [N] int64; negative for rows that another rank owns, which must be zero
    rows     [N, payload_bytes + scale_bytes] uint8, contiguous
    """
    first = ctypes.c_uint64()
    bad = library().st_pattern_check(
        seed, _address(row_ids, row_ids.size * 8, "row_ids"), row_ids.size, payload_bytes, scale_bytes,
        _address(rows, row_ids.size * (payload_bytes + scale_bytes), "rows"), payload_bytes + scale_bytes,
        ctypes.byref(first),
    )  # fmt: skip
    return int(bad), int(first.value) if bad else -1
