# SPDX-License-Identifier: Apache-2.0
"""Sizes as people write them: 1G, 512MiB, 4096."""

from __future__ import annotations

import re
from typing import Final

from slacktier.errors import ConfigError

_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes; K, M, G and T are powers of 1024; raises ConfigError for what is no size."""
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found.group(1)) * _UNITS[found.group(2).upper()]) if found else 0
    if size <= 0:
        raise ConfigError(f"size {text!r}: expected a number of bytes such as 4G, 512MiB or 1048576")
    return size


def size_text(byte_count: float) -> str:
    """The size in the largest unit that leaves a number above 1."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if byte_count < 1024:
            return f"{byte_count:.0f} B" if unit == "B" else f"{byte_count:.2f} {unit}"
        byte_count /= 1024
    return f"{byte_count:.2f} TiB"
