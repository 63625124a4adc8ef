# SPDX-License-Identifier: Apache-2.0
"""The command line's lists and numbers, checked before anything is read."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Final

from slacktier.errors import ConfigError
from slacktier_cli.characterize.policies import Policy
from slacktier_native.cache_sim import SIZES_MAX

_SUFFIXES: Final = {"K": 1_000, "M": 1_000_000}


def parse_rows(text: str) -> tuple[int, ...]:
    """Cache sizes such as `62500,250K,1M,19.2M`, in rising order; raises ConfigError."""
    sizes = tuple(sorted(_size(part) for part in _parts(text, "--rows")))
    if len(set(sizes)) != len(sizes) or len(sizes) > SIZES_MAX:
        raise ConfigError(f"--rows {text}: expected at most {SIZES_MAX} different sizes")
    return sizes


def parse_numbers(text: str, option: str, *, least: int) -> tuple[int, ...]:
    """Whole numbers such as `64,256`, each once; raises ConfigError."""
    numbers = []
    for part in _parts(text, option):
        if not (part.isascii() and part.isdigit()) or int(part) < least:
            raise ConfigError(f"{option} {text}: {part!r} is not a whole number of at least {least}")
        numbers.append(int(part))
    if len(set(numbers)) != len(numbers):
        raise ConfigError(f"{option} {text}: a number stands there twice")
    return tuple(numbers)


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Policies such as `lru,clock`, or `all`; raises ConfigError."""
    if text.strip() == "all":
        return tuple(Policy)
    parts = _parts(text, "--policy")
    known = {str(policy) for policy in Policy}
    if unknown := [part for part in parts if part not in known]:
        raise ConfigError(f"--policy {unknown[0]}: expected some of {', '.join(Policy)}, or all")
    if len(set(parts)) != len(parts):
        raise ConfigError(f"--policy {text}: a policy stands there twice")
    return tuple(Policy(part) for part in parts)


def _parts(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{option} {text!r}: expected values separated by commas")
    return parts


def _size(part: str) -> int:
    factor = _SUFFIXES.get(part[-1].upper(), 1)
    digits = part if factor == 1 else part[:-1]
    try:
        size = Decimal(digits) * factor
    except InvalidOperation:
        size = Decimal("nan")
    if not size.is_finite() or size <= 0 or size != int(size) or size > 2**32:
        raise ConfigError(f"--rows {part}: expected a whole number of rows, such as 62500, 250K or 1M")
    return int(size)
