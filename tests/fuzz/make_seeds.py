# SPDX-License-Identifier: Apache-2.0
"""Writes a few right inputs for each fuzz target: make_seeds.py DIRECTORY. From there the fuzzer finds its way."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from fuzz_row_handshake import SERVED

from slacktier.page import encode_page, encode_superblock
from slacktier_native.row_handshake import MAGIC


def safetensors_header() -> bytes:
    entry = {"dtype": "U8", "shape": [2, 5], "data_offsets": [0, 10]}
    return json.dumps({"__metadata__": {"format": "pt"}, "model.layers.1.weight": entry}).encode()


def rows_request(*ids: int) -> bytes:
    return struct.pack(f"<IIQII{len(ids)}I", 0x51524C53, len(ids), 1, 0, 0, *ids)


def seeds() -> dict[str, list[bytes]]:
    """Per target; the first byte of each input chooses how the target reads the rest."""
    header = safetensors_header()
    page = encode_page(SERVED, 0, [bytes(SERVED.row_bytes)] * SERVED.rows_per_page)
    raw_page = struct.pack("<QIIII", SERVED.row_count, SERVED.payload_bytes, SERVED.scale_bytes, 0, 0) + page
    return {
        "page": [b"\1" + raw_page, b"\0\0", b"\0\1" + b"\x10\0\1"],
        "rows_client": [b"\1\0", b"\1\xd0", b"\1\0\x20\0\1", b"\0" + struct.pack("<IIQII", 0x50524C53, 34, 1, 0, 0)],
        "rows_server": [b"\1" + rows_request(0, 99, 5), b"\1" + rows_request(100), b"\1" + rows_request(*[1] * 900)],
        "superblock": [b"\xff" + encode_superblock(SERVED), b"\0" + encode_superblock(SERVED)],
        "safetensors_header": [b"\xff\x0a" + header, struct.pack("<Q", len(header)) + header + bytes(10)],
        "row_handshake": [b"\0" + bytes(84), b"\xff" + MAGIC + bytes(32) + bytes(4 + 4096 + 32)],
    }


def main() -> None:
    for target, inputs in seeds().items():
        directory = Path(sys.argv[1]) / target
        directory.mkdir(parents=True, exist_ok=True)
        for index, content in enumerate(inputs):
            (directory / f"seed{index}").write_bytes(content)


if __name__ == "__main__":
    main()
