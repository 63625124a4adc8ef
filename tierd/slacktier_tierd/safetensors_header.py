# SPDX-License-Identifier: Apache-2.0
"""Reads a safetensors file's header: where each tensor's bytes lie. Never reads, maps or loads a tensor.

The file comes from outside, so every number in it is checked before it is used.

    offset  type    field
    0       u64     header bytes, n
    8       n       JSON: name -> {dtype, shape, data_offsets: [begin, end]} and "__metadata__": {str: str}
    8 + n           tensor data; data_offsets count from here, without gap or overlap, to the end of the file
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier.region import open_error

# A header of a real checkpoint holds about 130 bytes per tensor; this is 250,000 tensors in one file.
HEADER_BYTES_MAX: Final = 32 << 20
_LENGTH: Final = struct.Struct("<Q")
_LFS_POINTER: Final = b"version https://git-lfs"
_LFS_POINTER_BYTES_MAX: Final = 1024
DTYPE_BITS: Final[Mapping[str, int]] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "U16": 16, "I16": 16, "F16": 16,
    "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64, "C64": 64, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor's bytes: [begin, end) of the file at path."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A file whose header is whole and whose size is what the header describes."""

    path: Path
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


def read_header(path: Path) -> SafetensorsFile:
    """The header of one file; raises ConfigError naming the file and the first thing that is wrong."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise open_error(path, exc) from exc
    with os.fdopen(fd, "rb") as file:
        try:
            file_bytes = os.fstat(file.fileno()).st_size
            start = file.read(_LFS_POINTER_BYTES_MAX)
            header_bytes = _header_bytes(path, start, file_bytes)
            file.seek(_LENGTH.size)
            raw = file.read(header_bytes)
        except OSError as exc:
            raise ConfigError(f"{path}: header cannot be read: {exc.strerror}") from exc
    return _parse(path, raw, file_bytes)


def _header_bytes(path: Path, start: bytes, file_bytes: int) -> int:
    if start.startswith(_LFS_POINTER):
        raise ConfigError(
            f"{path}: a Git LFS pointer of {file_bytes} bytes, not the file; it stands for {_lfs_size(start)} bytes",
            hint="fetch the file itself: `git lfs pull`, or download it again",
        )
    if len(start) < _LENGTH.size:
        raise ConfigError(f"{path}: {file_bytes} bytes, too short for a safetensors file", hint="download it again")
    (header_bytes,) = _LENGTH.unpack_from(start)
    if header_bytes > HEADER_BYTES_MAX:
        raise ConfigError(
            f"{path}: header of {header_bytes} bytes, expected at most {HEADER_BYTES_MAX}; not a safetensors file?"
        )
    if _LENGTH.size + header_bytes > file_bytes:
        raise ConfigError(
            f"{path}: truncated: {file_bytes} bytes, its header alone ends at {_LENGTH.size + header_bytes}",
            hint="download it again",
        )
    return int(header_bytes)


def _lfs_size(pointer: bytes) -> str:
    for line in pointer.splitlines():
        if line.startswith(b"size ") and line[5:].isdigit():
            return line[5:].decode()
    return "an unknown number of"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _parse(path: Path, raw: bytes, file_bytes: int) -> SafetensorsFile:
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: header is not JSON: {exc}") from exc
    if not isinstance(header, dict):
        raise ConfigError(f"{path}: header is a JSON {type(header).__name__}, expected an object")
    metadata = _metadata(path, header.pop("__metadata__", {}))
    data_begin = _LENGTH.size + len(raw)
    tensors = {name: _entry(path, name, fields, data_begin) for name, fields in header.items()}
    _check_extent(path, tensors, data_begin, file_bytes)
    return SafetensorsFile(path, tensors, metadata)


def _metadata(path: Path, fields: object) -> dict[str, str]:
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise ConfigError(f"{path}: __metadata__ is not an object of strings")
    return fields


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(path: Path, name: str, fields: object, data_begin: int) -> TensorEntry:
    where = f"{path}: tensor {name[:200]!r}"
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ConfigError(f"{where}: expected the fields dtype, shape, data_offsets")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(map(_natural, shape)):
        raise ConfigError(f"{where}: dtype or shape is not one")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_natural, offsets)):
        raise ConfigError(f"{where}: data_offsets is not a pair of byte counts")
    begin, end = offsets
    if begin > end:
        raise ConfigError(f"{where}: data_offsets {begin} to {end} run backwards")
    if dtype in DTYPE_BITS and _tensor_bits(shape, DTYPE_BITS[dtype]) != (end - begin) * 8:
        raise ConfigError(f"{where}: {end - begin} bytes do not hold shape {shape[:8]} of {dtype}")
    return TensorEntry(name, dtype, tuple(shape), path, data_begin + begin, data_begin + end)


def _tensor_bits(shape: list[int], dtype_bits: int) -> int:
    bits = dtype_bits
    for size in shape:
        bits *= size
        if bits >> 80:  # more than any file holds; stop before a long shape makes a long number
            return -1
    return bits


def _check_extent(path: Path, tensors: Mapping[str, TensorEntry], data_begin: int, file_bytes: int) -> None:
    spans = sorted((entry.begin, entry.end, name) for name, entry in tensors.items())
    for (_, end, name), (begin, _, following) in pairwise(spans):
        if begin != end:
            fault = "overlap" if begin < end else "leave a gap"
            raise ConfigError(f"{path}: tensors {name[:200]!r} and {following[:200]!r} {fault}")
    if spans and spans[0][0] != data_begin:
        raise ConfigError(f"{path}: tensor data begins {spans[0][0] - data_begin} bytes late")
    described = spans[-1][1] if spans else data_begin
    if file_bytes != described:
        fault = "truncated" if file_bytes < described else "longer than its header says"
        raise ConfigError(
            f"{path}: {fault}: {file_bytes} bytes, expected {described} by its header", hint="download it again"
        )
