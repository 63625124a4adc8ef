# SPDX-License-Identifier: Apache-2.0
"""The digest chain of a table's source rows: what `source_digest` in the superblock is.

The table is cut into chunks of CHUNK_PAGES data pages' rows. Chunks are hashed on their own, so that several
threads can work on them, and folded in order, so that the chain at a watermark says what was staged up to it.
Layout: docs/page-format.md. The standard library only.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from slacktier.page import Superblock

CHUNK_PAGES: Final = 1024  # part of the format: other chunks give other digests
Bytes = bytes | bytearray | memoryview
_DOMAIN: Final = b"slacktier source digest 1\0"
_SHAPE: Final = struct.Struct("<QIIIf")  # rows, payload bytes, scale bytes, row format, tensor scale


def chunk_count(sb: Superblock) -> int:
    """Chunks of the whole region; the last may be short."""
    return -(-sb.page_count // CHUNK_PAGES)


def chain_start(sb: Superblock) -> bytes:
    """D_0: SHA-256 of the domain and the table's shape, so that equal bytes of another shape differ."""
    shape = _SHAPE.pack(sb.row_count, sb.payload_bytes, sb.scale_bytes, int(sb.row_format), sb.tensor_scale)
    return hashlib.sha256(_DOMAIN + shape).digest()


def chunk_digest(weights: Bytes, scales: Bytes | None) -> bytes:
    """SHA-256 of a chunk's payloads, packed, then its scales, packed; releases the GIL."""
    digest = hashlib.sha256(weights)
    if scales is not None:
        digest.update(scales)
    return digest.digest()


def chain_next(link: bytes, chunk: bytes) -> bytes:
    """D_{i+1} = SHA-256(D_i || chunk digest i)."""
    return hashlib.sha256(link + chunk).digest()
