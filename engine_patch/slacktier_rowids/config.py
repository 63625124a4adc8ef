# SPDX-License-Identifier: Apache-2.0
"""Reads numbers out of a model's config.json; every complaint names the field, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slacktier.errors import ConfigError

ConfigJson = Mapping[str, Any]


def whole(config: ConfigJson, field: str, *, least: int = 0, default: int | None = None) -> int:
    """config[field] as an int >= least; a missing field without a default is an error."""
    value = config.get(field, default)
    if value is None:
        raise ConfigError(f"model config: {field} is missing")
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"model config: {field} is {value!r}, expected a whole number >= {least}")
    return value


def wholes(config: ConfigJson, field: str, *, least: int = 0) -> tuple[int, ...]:
    """config[field] as a non-empty list of distinct or equal ints >= least."""
    values = config.get(field)
    if not isinstance(values, list | tuple) or not values:
        raise ConfigError(f"model config: {field} is {values!r}, expected a list of whole numbers")
    return tuple(whole({field: value}, field, least=least) for value in values)


def section(config: ConfigJson, field: str) -> ConfigJson:
    """config[field] as a nested object; empty if it is absent or null."""
    value = config.get(field)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"model config: {field} is a {type(value).__name__}, expected an object")
    return value
