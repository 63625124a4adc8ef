# SPDX-License-Identifier: Apache-2.0
"""How large a layer's row cache may be: no more rows than the table has, and no more bytes than memory has left.

The core maps its caches lazily, so one that is too large opens well and is killed for memory much later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError

_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class CacheWish:
    """The cache that a layer is to have: rows of row_bytes each, of a table with row_count rows."""

    layer_id: int
    rows: int
    row_bytes: int
    row_count: int


def check_caches(wishes: Iterable[CacheWish], available_bytes: int | None = None) -> None:
    """Raises ConfigError unless every cache fits its table, and all together fit what memory has left.

    wishes           caches that are new or grow; what they replace is freed only afterwards
    available_bytes  default: what the kernel says is available now
    """
    wanted = list(wishes)
    for wish in wanted:
        if wish.rows > wish.row_count:
            raise ConfigError(
                f"layer {wish.layer_id}: cache of {wish.rows} rows ({wish.rows * wish.row_bytes} bytes), "
                f"the table has {wish.row_count} rows"
            )
    available = available_memory_bytes() if available_bytes is None else available_bytes
    needed = sum(wish.rows * wish.row_bytes for wish in wanted)
    if needed > available:
        rows = ", ".join(f"{wish.rows} rows for layer {wish.layer_id}" for wish in wanted)
        raise ConfigError(f"cache of {rows}: needs {needed} bytes of memory, {available} are available")


def available_memory_bytes() -> int:
    """MemAvailable: what can be used without swapping."""
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise ConfigError(f"{_MEMINFO}: has no MemAvailable")
