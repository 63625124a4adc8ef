# SPDX-License-Identifier: Apache-2.0
"""Bytes of a region: superblock, data page and record. The reference codec; bulk work is in C (st_page.h).

Must stay identical to `engine_patch/native/include/st_page.h`; tests/golden holds both to the same bytes.
Layout: docs/page-format.md. All integers are little-endian; reserved bytes are zero and checked.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from slacktier.errors import ConfigError, ContractError

PAGE_BYTES: Final = 4096
SUPERBLOCK_PAGES: Final = 2
SUPERBLOCK_MAGIC: Final = b"SLKTIER\0"
FORMAT_VERSION: Final = 1
PAGE_MAGIC: Final = 0x47504C53  # "SLPG"
RECORD_ALIGN: Final = 16
TAG_BYTES: Final = 4
CRC_BYTES: Final = 4
STRIPE_COUNT_MAX: Final = 64

PAGE_HEADER: Final = struct.Struct("<IHHII")  # magic, format version, reserved, page id (low 32 bits), epoch
# magic, version, reserved, sequence, uuid, layer id, epoch, rows, payload, scale, record, rows per page, pages,
# stripe count, stripe index, state, row format, tensor scale, reserved, staged pages, digest, model, revision, source
SUPERBLOCK: Final = struct.Struct("<8sIIQ16sIIQIIIIQIIIIfIQ32s128s64s128s")
_CRC_OFFSET: Final = PAGE_BYTES - CRC_BYTES


class State(IntEnum):
    """How far staging has come. Only `complete` is served; `partial` opens with an explicit flag."""

    STAGING = 1
    PARTIAL = 2
    COMPLETE = 3


class RowFormat(IntEnum):
    """What the payload and scale bytes of a row mean."""

    RAW = 0
    FP8_E4M3_BLOCK_E8M0 = 1  # V4.1: 256 FP8 values, one E8M0 scale per 32
    FP8_E4M3 = 2  # Qwen3.8 PLE: 160 FP8 values, one scale per tensor
    BF16 = 3  # Qwen3.8 PLE: 160 BF16 values


def _crc32c_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE: Final = _crc32c_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli, RFC 3720) of data, continuing from crc. Slow on purpose: the reference."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def record_bytes_for(payload_bytes: int, scale_bytes: int) -> int:
    """The record's stride: payload, scales, tag and CRC, rounded up to 16 bytes."""
    used = payload_bytes + scale_bytes + TAG_BYTES + CRC_BYTES
    return -(-used // RECORD_ALIGN) * RECORD_ALIGN


@dataclass(frozen=True, slots=True)
class Superblock:
    """One region's identity and state, as in its first two pages.

    source_digest  32 bytes; the digest chain over all source rows when complete, over the staged ones before
    staged_pages   pages [0, staged_pages) of the whole region are durable; equals page_count when complete
    sequence       grows by one with each write; the newer valid copy of the two is in force
    """

    table_uuid: uuid.UUID
    layer_id: int
    epoch: int
    row_count: int
    payload_bytes: int
    scale_bytes: int
    row_format: RowFormat
    model: str
    revision: str
    source: str
    state: State = State.STAGING
    sequence: int = 0
    staged_pages: int = 0
    stripe_count: int = 1
    stripe_index: int = 0
    tensor_scale: float = 1.0
    source_digest: bytes = bytes(32)

    def __post_init__(self) -> None:
        if not 0 < self.row_count < 1 << 32:
            raise ConfigError(f"row count {self.row_count}: expected 1 to 2^32 - 1")
        if self.payload_bytes <= 0 or self.scale_bytes < 0 or self.rows_per_page < 1:
            raise ConfigError(
                f"row of {self.payload_bytes} + {self.scale_bytes} bytes: expected a record that fits a page"
            )
        if not 0 <= self.stripe_index < self.stripe_count <= STRIPE_COUNT_MAX:
            raise ConfigError(
                f"stripe {self.stripe_index} of {self.stripe_count}: expected index < count <= {STRIPE_COUNT_MAX}"
            )
        if not math.isfinite(self.tensor_scale):
            raise ConfigError(f"tensor scale {self.tensor_scale}: expected a finite number")

    @property
    def row_bytes(self) -> int:
        return self.payload_bytes + self.scale_bytes

    @property
    def record_bytes(self) -> int:
        return record_bytes_for(self.payload_bytes, self.scale_bytes)

    @property
    def rows_per_page(self) -> int:
        return (PAGE_BYTES - PAGE_HEADER.size) // self.record_bytes

    @property
    def page_count(self) -> int:
        """Data pages of the whole region, all stripes together."""
        return -(-self.row_count // self.rows_per_page)

    @property
    def stripe_page_count(self) -> int:
        """Data pages on this stripe: page p is on stripe p % stripe_count."""
        return (self.page_count - self.stripe_index + self.stripe_count - 1) // self.stripe_count

    @property
    def stripe_bytes(self) -> int:
        """Size of this stripe's file or device range, superblock included."""
        return (SUPERBLOCK_PAGES + self.stripe_page_count) * PAGE_BYTES

    @property
    def crc_seed(self) -> int:
        """What every record's CRC starts from: table uuid, layer id, epoch."""
        return crc32c(self.table_uuid.bytes + struct.pack("<II", self.layer_id, self.epoch))

    def page_offset(self, page_id: int) -> int:
        """Byte offset of a data page on its stripe."""
        return (SUPERBLOCK_PAGES + page_id // self.stripe_count) * PAGE_BYTES

    def with_state(self, state: State, *, staged_pages: int, source_digest: bytes) -> Superblock:
        """The next superblock to write: same identity, new progress."""
        return replace(
            self, state=state, staged_pages=staged_pages, source_digest=source_digest, sequence=self.sequence + 1
        )


def _text(value: str, size: int, name: str) -> bytes:
    raw = value.encode()
    if len(raw) > size or b"\0" in raw:
        raise ConfigError(f"{name} {value!r}: expected at most {size} bytes of UTF-8 without NUL")
    return raw


def _decoded_text(raw: bytes, name: str) -> str:
    text = raw.rstrip(b"\0")
    if b"\0" in text:
        raise ValueError(f"{name} {text!r}: a NUL inside it")
    return text.decode()


def encode_superblock(sb: Superblock) -> bytes:
    """One superblock page, PAGE_BYTES long. Both copies hold the same bytes."""
    body = SUPERBLOCK.pack(
        SUPERBLOCK_MAGIC, FORMAT_VERSION, 0, sb.sequence, sb.table_uuid.bytes, sb.layer_id, sb.epoch, sb.row_count,
        sb.payload_bytes, sb.scale_bytes, sb.record_bytes, sb.rows_per_page, sb.page_count, sb.stripe_count,
        sb.stripe_index, int(sb.state), int(sb.row_format), sb.tensor_scale, 0, sb.staged_pages, sb.source_digest,
        _text(sb.model, 128, "model"), _text(sb.revision, 64, "revision"), _text(sb.source, 128, "source"),
    )  # fmt: skip
    page = body + bytes(_CRC_OFFSET - len(body))
    return page + struct.pack("<I", crc32c(page))


def decode_superblock(page: bytes) -> Superblock:
    """The superblock in one page; raises ContractError naming the first thing that is wrong."""
    if len(page) != PAGE_BYTES:
        raise ContractError(f"superblock: {len(page)} bytes, expected {PAGE_BYTES}")
    if page[: len(SUPERBLOCK_MAGIC)] != SUPERBLOCK_MAGIC:
        raise ContractError(f"superblock: magic {page[:8]!r}, expected {SUPERBLOCK_MAGIC!r}")
    (found,) = struct.unpack_from("<I", page, _CRC_OFFSET)
    expected = crc32c(page[:_CRC_OFFSET])
    if found != expected:
        raise ContractError(f"superblock: checksum {found:#010x}, expected {expected:#010x}")
    (
        _, version, reserved0, sequence, raw_uuid, layer_id, epoch, row_count, payload_bytes, scale_bytes, record_bytes,
        rows_per_page, page_count, stripe_count, stripe_index, state, row_format, tensor_scale, reserved1,
        staged_pages, digest, model, revision, source,
    ) = SUPERBLOCK.unpack_from(page)  # fmt: skip
    if version != FORMAT_VERSION:
        raise ContractError(
            f"superblock: format version {version}, expected {FORMAT_VERSION}", hint="stage the table again"
        )
    if reserved0 or reserved1 or any(page[SUPERBLOCK.size : _CRC_OFFSET]):
        raise ContractError("superblock: reserved bytes are not zero")
    try:
        sb = Superblock(
            table_uuid=uuid.UUID(bytes=raw_uuid), layer_id=layer_id, epoch=epoch, row_count=row_count,
            payload_bytes=payload_bytes, scale_bytes=scale_bytes, row_format=RowFormat(row_format),
            model=_decoded_text(model, "model"), revision=_decoded_text(revision, "revision"),
            source=_decoded_text(source, "source"), state=State(state), sequence=sequence, staged_pages=staged_pages,
            stripe_count=stripe_count, stripe_index=stripe_index, tensor_scale=tensor_scale, source_digest=digest,
        )  # fmt: skip
    except (ConfigError, ValueError) as exc:
        raise ContractError(f"superblock: {exc}") from exc
    derived = (sb.record_bytes, sb.rows_per_page, sb.page_count)
    if derived != (record_bytes, rows_per_page, page_count):
        raise ContractError(
            f"superblock: record bytes, rows per page, pages {(record_bytes, rows_per_page, page_count)}, "
            f"expected {derived}"
        )
    if staged_pages > page_count or (sb.state is State.COMPLETE and staged_pages != page_count):
        raise ContractError(f"superblock: {staged_pages} of {page_count} pages staged in state {sb.state.name.lower()}")
    return sb


def carries_superblock(copies: Sequence[bytes]) -> bool:
    """Whether either copy begins as ours does; one that is damaged further on still tells whose it is."""
    return any(page.startswith(SUPERBLOCK_MAGIC) for page in copies)


def newest_superblock(copies: Sequence[bytes]) -> Superblock:
    """The valid copy with the highest sequence; raises ContractError with each copy's fault if none is valid."""
    valid: list[Superblock] = []
    faults: list[str] = []
    for index, page in enumerate(copies):
        try:
            valid.append(decode_superblock(page))
        except ContractError as exc:
            faults.append(f"copy {index}: {exc}")
    if not valid:
        raise ContractError("no valid superblock: " + "; ".join(faults))
    return max(valid, key=lambda sb: sb.sequence)


def encode_record(sb: Superblock, row_id: int, row: bytes) -> bytes:
    """One record: row (payload then scales), tag, CRC, padding. The CRC covers seed, tag, row, in this order."""
    if len(row) != sb.row_bytes:
        raise ConfigError(f"row {row_id}: {len(row)} bytes, expected {sb.row_bytes}")
    tag = struct.pack("<I", row_id & 0xFFFFFFFF)
    crc = crc32c(row, crc32c(tag, sb.crc_seed))
    record = row + tag + struct.pack("<I", crc)
    return record + bytes(sb.record_bytes - len(record))


def encode_page(sb: Superblock, page_id: int, rows: Sequence[bytes]) -> bytes:
    """One data page with consecutive rows from page_id * rows_per_page on; what is unused is zero."""
    first = page_id * sb.rows_per_page
    if not 0 < len(rows) <= sb.rows_per_page or first + len(rows) > sb.row_count:
        raise ConfigError(f"page {page_id}: {len(rows)} rows from {first}, expected 1 to {sb.rows_per_page} in range")
    header = PAGE_HEADER.pack(PAGE_MAGIC, FORMAT_VERSION, 0, page_id & 0xFFFFFFFF, sb.epoch)
    page = header + b"".join(encode_record(sb, first + i, row) for i, row in enumerate(rows))
    return page + bytes(PAGE_BYTES - len(page))


def decode_row(sb: Superblock, page: bytes, row_id: int) -> bytes:
    """The row's payload and scales from its page, or ContractError: never another row's bytes."""
    page_id, slot = divmod(row_id, sb.rows_per_page)
    header = PAGE_HEADER.unpack_from(page)
    expected = (PAGE_MAGIC, FORMAT_VERSION, 0, page_id & 0xFFFFFFFF, sb.epoch)
    if header != expected:
        raise ContractError(f"page {page_id}: header {header}, expected {expected}")
    start = PAGE_HEADER.size + slot * sb.record_bytes
    row = page[start : start + sb.row_bytes]
    tag, crc = struct.unpack_from("<II", page, start + sb.row_bytes)
    if tag != row_id & 0xFFFFFFFF:
        raise ContractError(f"row {row_id}: tag {tag}, expected {row_id & 0xFFFFFFFF}")
    want = crc32c(row, crc32c(struct.pack("<I", tag), sb.crc_seed))
    if crc != want:
        raise ContractError(f"row {row_id}: checksum {crc:#010x}, expected {want:#010x}")
    return row


def same_rows(a: Superblock, b: Superblock) -> bool:
    """Do two regions hold the same rows? Their epochs may differ. Partial regions of one digest count: for tests."""

    def rows_of(sb: Superblock) -> tuple[object, ...]:
        geometry = (sb.row_count, sb.payload_bytes, sb.scale_bytes, sb.row_format)
        return (sb.table_uuid, sb.layer_id, sb.source_digest, *geometry)

    return rows_of(a) == rows_of(b)
