# SPDX-License-Identifier: Apache-2.0
"""One flipped bit anywhere in a region: `verify` finds it, and no read of a row returns wrong bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from region_fixtures import pattern_table

from slacktier.errors import ContractError
from slacktier.page import PAGE_BYTES, Superblock, decode_row, newest_superblock
from slacktier.region import open_region
from slacktier_native.pages import PageCodec, pattern_fill
from slacktier_tierd.staging import stage
from slacktier_tierd.verify import verify_region

PLACES = 1000
ROWS, PAYLOAD, SCALES, SEED = 40, 300, 8, 6  # stride 320: 4 bytes of padding, a tail of 240; the last page is short
KINDS = ("superblock", "page header", "payload", "scales", "tag", "crc", "padding", "page tail", "unused record")


def kind_of(sb: Superblock, offset: int) -> str:
    """What lies at this offset of a one-stripe region."""
    page, at = divmod(offset, PAGE_BYTES)
    if page < 2:
        return "superblock"
    if at < 16:
        return "page header"
    slot, within = divmod(at - 16, sb.record_bytes)
    if slot >= sb.rows_per_page:
        return "page tail"
    if (page - 2) * sb.rows_per_page + slot >= sb.row_count:
        return "unused record"
    edges = {"payload": sb.payload_bytes, "scales": sb.row_bytes, "tag": sb.row_bytes + 4, "crc": sb.row_bytes + 8}
    return next((name for name, end in edges.items() if within < end), "padding")


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, Superblock, list[bytes]]:
    """(path, bytes, superblock, rows) of a small region whose records have padding and whose pages have a tail."""
    path = tmp_path_factory.mktemp("flips") / "t.region"
    stage(pattern_table(ROWS, payload_bytes=PAYLOAD, scale_bytes=SCALES, seed=SEED), [path])
    raw = path.read_bytes()
    weights, scales = np.empty((ROWS, PAYLOAD), np.uint8), np.empty((ROWS, SCALES), np.uint8)
    pattern_fill(SEED << 16 | 1, 0, ROWS, PAYLOAD, SCALES, weights, scales)
    rows = [weights[row].tobytes() + scales[row].tobytes() for row in range(ROWS)]
    return path, raw, newest_superblock([raw[:PAGE_BYTES], raw[PAGE_BYTES : 2 * PAGE_BYTES]]), rows


def places(sb: Superblock, size: int, draw: random.Random) -> Iterator[int]:
    """PLACES random bit numbers: half anywhere, half spread evenly over the kinds of place."""
    by_kind: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for offset in range(size):
        by_kind[kind_of(sb, offset)].append(offset)
    assert all(by_kind.values())
    for place in range(PLACES):
        offset = draw.randrange(size) if place % 2 else draw.choice(by_kind[KINDS[place // 2 % len(KINDS)]])
        yield offset * 8 + draw.randrange(8)


def row_by_reference(sb: Superblock, raw: bytes, row_id: int) -> bytes | None:
    offset = sb.page_offset(row_id // sb.rows_per_page)
    try:
        return decode_row(sb, raw[offset : offset + PAGE_BYTES], row_id)
    except ContractError:
        return None


def test_flipped_bit_is_found_and_never_becomes_a_wrong_row(
    region: tuple[Path, bytes, Superblock, list[bytes]],
) -> None:
    path, raw, sb, rows = region
    codec, seed = PageCodec(sb), random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    for bit in places(sb, len(raw), random.Random(seed)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        assert verify_region([path], threads=1).fault_count == 1, (bit, kind_of(sb, bit // 8))
        page = bit // 8 // PAGE_BYTES
        if page < 2:
            with open_region([path]) as found_region:
                assert found_region.superblock == sb
            continue
        first = (page - 2) * sb.rows_per_page
        found = [row_by_reference(sb, bytes(flipped), row) for row in range(first, min(ROWS, first + sb.rows_per_page))]
        assert all(row is None or row == rows[first + at] for at, row in enumerate(found)), bit
        with pytest.raises(ContractError):
            codec.verify(page - 2, 1, np.frombuffer(flipped, np.uint8)[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
