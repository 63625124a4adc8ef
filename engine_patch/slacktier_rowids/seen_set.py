# SPDX-License-Identifier: Apache-2.0
"""Seen-set: which rows of each layer's table a body of traffic has used, one bit per row. Read by lossy skipping.

All integers are little-endian.

offset       type      field
0            8s        magic "SLSEEN\\0\\0"
8            u32       format version, 1
12           u32       layers L
16           entry[L]  layer id u32, reserved u32 (zero), rows of the table u64, rows seen u64; rising layer ids
16 + 24 L    u8[]      a bitmap per layer: row r is bit r % 8 of byte r // 8; zero bits to a multiple of 8 bytes
end - 4      u32       CRC-32 (zlib) of everything before

V4.1's two tables take 96 MB, whatever was seen.
"""

from __future__ import annotations

import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, ContractError, SlackTierError

MAGIC: Final = b"SLSEEN\0\0"
FORMAT_VERSION: Final = 1
LAYERS_MAX: Final = 1024
_HEADER: Final = struct.Struct("<8sII")
_ENTRY: Final = struct.Struct("<IIQQ")
_CRC: Final = struct.Struct("<I")

Bitmap = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SeenLayer:
    """One layer's rows; bitmap [bitmap_bytes(row_count)] uint8."""

    layer_id: int
    row_count: int
    bitmap: Bitmap

    @classmethod
    def of_flags(cls, layer_id: int, flags: npt.NDArray[np.bool_]) -> Self:
        """flags [row_count] bool: the row was used."""
        bitmap = np.zeros(bitmap_bytes(len(flags)), np.uint8)
        packed = np.packbits(flags, bitorder="little")
        bitmap[: len(packed)] = packed
        return cls(layer_id, len(flags), bitmap)

    @property
    def seen_count(self) -> int:
        return int.from_bytes(self.bitmap.tobytes(), "little").bit_count()

    def contains(self, row_ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
        """Which of these rows were seen, in the shape of row_ids; raises ConfigError for a row outside the table."""
        if row_ids.size and (int(row_ids.min()) < 0 or int(row_ids.max()) >= self.row_count):
            raise ConfigError(f"seen-set: a row outside the {self.row_count} of layer {self.layer_id}")
        bits: npt.NDArray[np.bool_] = (self.bitmap[row_ids >> 3] >> (row_ids & 7).astype(np.uint8) & 1).astype(np.bool_)
        return bits


@dataclass(frozen=True, eq=False)
class SeenSet:
    """Seen rows of the layers of one model."""

    layers: tuple[SeenLayer, ...]

    def layer(self, layer_id: int, row_count: int) -> SeenLayer:
        """The layer's rows; raises ConfigError if the set is of another table."""
        found = {layer.layer_id: layer for layer in self.layers}
        if layer_id not in found:
            raise ConfigError(f"seen-set: no layer {layer_id}, it has {', '.join(map(str, found))}")
        if found[layer_id].row_count != row_count:
            raise ConfigError(f"seen-set: layer {layer_id} has {found[layer_id].row_count} rows, the table {row_count}")
        return found[layer_id]

    def write(self, path: Path) -> None:
        """Write the file in one rename: it is there whole, or not at all; raises SlackTierError if it cannot be."""
        header = _HEADER.pack(MAGIC, FORMAT_VERSION, len(self.layers)) + b"".join(
            _ENTRY.pack(layer.layer_id, 0, layer.row_count, layer.seen_count) for layer in self.layers
        )
        try:
            _write_whole(path, [header, *(layer.bitmap.data for layer in self.layers)])
        except OSError as exc:
            raise SlackTierError(f"seen-set {path}: {exc.strerror}") from exc

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a file; raises ConfigError if it is none, ContractError if its bytes are damaged."""
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as exc:
            raise ConfigError(f"seen-set {path}: {exc.strerror}") from exc
        if len(content) < _HEADER.size + _CRC.size or content[: len(MAGIC)].tobytes() != MAGIC:
            raise ConfigError(f"seen-set {path}: not a seen-set")
        _, version, layer_count = _HEADER.unpack_from(content.data)
        if version != FORMAT_VERSION:
            raise ConfigError(f"seen-set {path}: format version {version}, expected {FORMAT_VERSION}")
        if (found := zlib.crc32(content[: -_CRC.size].data)) != (stored := _CRC.unpack(content[-_CRC.size :].data)[0]):
            raise ContractError(f"seen-set {path}: CRC-32 {found:#010x}, the file says {stored:#010x}")
        return cls(tuple(_layers(content, layer_count, path)))


def bitmap_bytes(row_count: int) -> int:
    """Bytes of a layer's bitmap: one bit per row, to a multiple of 8 bytes."""
    return -(-row_count // 64) * 8


def _write_whole(path: Path, parts: list[bytes | memoryview[int]]) -> None:
    """The parts and their CRC."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            crc = 0
            for part in parts:
                crc = zlib.crc32(part, crc)
                stream.write(part)
            stream.write(_CRC.pack(crc))
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _layers(content: Bitmap, layer_count: int, path: Path) -> Iterable[SeenLayer]:
    """The CRC holds already, so what does not fit here was written by something else."""
    at = _HEADER.size + layer_count * _ENTRY.size
    if not 0 < layer_count <= LAYERS_MAX or at + _CRC.size > len(content):
        raise ContractError(f"seen-set {path}: {layer_count} layers in {len(content)} bytes")
    before = -1
    for index in range(layer_count):
        layer_id, reserved, row_count, seen = _ENTRY.unpack_from(content.data, _HEADER.size + index * _ENTRY.size)
        end = at + bitmap_bytes(row_count)
        if reserved or layer_id <= before or end + _CRC.size > len(content):
            raise ContractError(f"seen-set {path}: entry {index} (layer {layer_id}, {row_count} rows) does not fit")
        layer = SeenLayer(layer_id, row_count, content[at:end])
        if layer.seen_count != seen:
            raise ContractError(f"seen-set {path}: layer {layer_id} has {layer.seen_count} rows, its entry says {seen}")
        yield layer
        before, at = layer_id, end
    if at + _CRC.size != len(content):
        raise ContractError(f"seen-set {path}: {len(content)} bytes, its layers end at {at + _CRC.size}")
