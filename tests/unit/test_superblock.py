# SPDX-License-Identifier: Apache-2.0
"""Superblocks whose checksum is right and whose fields are not: refused, and never read as something else."""

from __future__ import annotations

import struct

import pytest
from test_lookup_core import superblock

from slacktier.errors import ContractError
from slacktier.page import PAGE_BYTES, SUPERBLOCK, crc32c, decode_superblock, encode_superblock

MODEL, TENSOR_SCALE = 21, 17  # places in SUPERBLOCK


def with_field(place: int, value: object) -> bytes:
    """A superblock page with one field changed and the checksum made right again."""
    fields = list(SUPERBLOCK.unpack_from(encode_superblock(superblock(1))))
    fields[place] = value
    body = SUPERBLOCK.pack(*fields).ljust(PAGE_BYTES - 4, b"\0")
    return body + struct.pack("<I", crc32c(body))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (MODEL, b"a\0b", r"model b'a\\x00b': a NUL inside it"),
        (MODEL, b"\xff", "invalid start byte"),
        (TENSOR_SCALE, float("nan"), "tensor scale nan: expected a finite number"),
        (TENSOR_SCALE, float("inf"), "tensor scale inf: expected a finite number"),
    ],
)
def test_a_field_that_would_not_be_written_is_not_read(place: int, value: object, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        decode_superblock(with_field(place, value))


def test_the_fields_in_these_places_are_read_as_written() -> None:
    assert decode_superblock(with_field(MODEL, b"m")).model == "m"
    assert decode_superblock(with_field(TENSOR_SCALE, 0.5)).tensor_scale == 0.5
