# SPDX-License-Identifier: Apache-2.0
"""The superblock parser: a ContractError, or a superblock that encodes to the same bytes again."""

from __future__ import annotations

import contextlib
import struct

from harness import fuzz

from slacktier import page as parser
from slacktier.errors import ContractError
from slacktier.page import PAGE_BYTES, decode_superblock, encode_superblock
from slacktier_native._lib import library

CRC_OFFSET = PAGE_BYTES - 4


def crc32c(data: bytes, crc: int = 0) -> int:
    return int(library().st_crc32c(crc, data, len(data)))


def one_input(data: bytes) -> None:
    page = data[1:]
    if data[:1] > b"\x20":  # the checksum made right, or little else would get past it
        body = page[:CRC_OFFSET].ljust(CRC_OFFSET, b"\0")
        page = body + struct.pack("<I", crc32c(body))
    with contextlib.suppress(ContractError):
        assert encode_superblock(decode_superblock(page)) == page


if __name__ == "__main__":
    parser.crc32c = crc32c  # the same in C: the one in Python would take nearly all of the time
    fuzz(one_input, parser)
