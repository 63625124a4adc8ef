# SPDX-License-Identifier: Apache-2.0
"""Seeds of test tables: how a person's seed and a layer give the seed of that layer's pattern.

A region whose rows follow the pattern says so in its superblock's source text (`pattern=SEED`), so that any
reader can check any row without a copy of the table. The bytes themselves: st_pattern_fill in st_page.h.
"""

from __future__ import annotations

import re
from typing import Final

from slacktier.errors import ConfigError
from slacktier.page import Superblock

METADATA_KEY: Final = "slacktier.pattern_seed"  # in a safetensors file's __metadata__
USER_SEED_MAX: Final = (1 << 48) - 1
_LAYER_BITS: Final = 16
_IN_SOURCE: Final = re.compile(r"\bpattern=(\d{1,15})\b")


def pattern_seed(user_seed: int, layer_id: int) -> int:
    """Seed of one layer's pattern: user_seed * 2^16 + layer_id, so no two layers share one."""
    if not 0 <= user_seed <= USER_SEED_MAX or not 0 <= layer_id < 1 << _LAYER_BITS:
        raise ConfigError(f"pattern seed {user_seed}, layer {layer_id}: expected 0 to 2^48 - 1 and 0 to 65535")
    return user_seed << _LAYER_BITS | layer_id


def source_text(origin: str, user_seed: int | None) -> str:
    """The superblock's source text: where the rows came from, and their pattern where they follow one."""
    return origin if user_seed is None else f"{origin} pattern={user_seed}"


def pattern_seed_of(sb: Superblock) -> int | None:
    """The layer's pattern seed that a region's superblock names, or None for a table with bytes of its own."""
    found = _IN_SOURCE.search(sb.source)
    return pattern_seed(int(found.group(1)), sb.layer_id) if found else None
