# SPDX-License-Identifier: Apache-2.0
"""The safetensors header parser: a ConfigError, or tensors that fill the file without gap or overlap."""

from __future__ import annotations

import contextlib
import os
import struct
from itertools import pairwise
from pathlib import Path

from harness import fuzz

from slacktier.errors import ConfigError
from slacktier_tierd import safetensors_header
from slacktier_tierd.safetensors_header import read_header

FD = os.memfd_create("fuzzed.safetensors")
PATH = Path(f"/proc/self/fd/{FD}")


def one_input(data: bytes) -> None:
    if data[:1] > b"\x20" and len(data) > 9:  # a right length and room for the data, so that the JSON is looked at
        raw = data[2:]
        data = struct.pack("<Q", len(raw)) + raw + bytes(data[1])
    os.ftruncate(FD, 0)
    os.pwrite(FD, data, 0)
    with contextlib.suppress(ConfigError):
        file = read_header(PATH)
        spans = sorted((entry.begin, entry.end) for entry in file.tensors.values())
        assert all(begin == end for (_, end), (begin, _) in pairwise(spans))
        assert not spans or spans[-1][1] == len(data)


if __name__ == "__main__":
    fuzz(one_input, safetensors_header)
