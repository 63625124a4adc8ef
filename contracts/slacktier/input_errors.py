# SPDX-License-Identifier: Apache-2.0
"""One clear line for input that a pydantic model refuses: where, what was found, what was expected."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from slacktier.errors import ConfigError

_UNITS = ("_ms", "_us", "_ns", "_s", "_bytes", "_gib", "_pct")
_TEXT_NUMBER_HINT = "write a plain number without quotes or unit; YAML takes 1e6 for text, so write 1000000 or 1.0e+6"


def config_error(exc: ValidationError, model: type[BaseModel], source: str = "") -> ConfigError:
    """The first fault as a ConfigError, `source` (a file name) in front."""
    faults = exc.errors()
    # A misspelt key also leaves the right one missing: the spelling is what to say.
    fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
    where = _path(fault["loc"])
    prefix = f"{source}: " if source else ""
    kind, found = fault["type"], fault["input"]
    if kind == "extra_forbidden":
        known = _known_keys(model, fault["loc"][:-1])
        return ConfigError(f"{prefix}{where}: unknown key", hint=_key_hint(str(fault["loc"][-1]), known))
    if kind == "missing":
        return ConfigError(f"{prefix}{where}: missing")
    if kind == "enum":
        return ConfigError(f"{prefix}{where}: unknown value {found!r}, expected {fault['ctx']['expected']}")
    hint = _TEXT_NUMBER_HINT if kind in ("float_type", "int_type") and isinstance(found, str) else ""
    shown = repr(found) if isinstance(found, str | int | float | bool | None) else type(found).__name__
    message = fault["msg"].removeprefix("Value error, ")
    return ConfigError(f"{prefix}{where}: {shown}: {message[:1].lower()}{message[1:]}", hint=hint)


def _path(loc: Sequence[str | int]) -> str:
    """('devices', 0, 'read') -> devices[0].read."""
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _known_keys(model: type[BaseModel], loc: Sequence[str | int]) -> list[str]:
    """Field names of the model that the path leads to."""
    current: type[BaseModel] = model
    for part in loc:
        if isinstance(part, str) and part in current.model_fields:
            inner = _inner_model(current.model_fields[part].annotation)
            current = inner or current
    return list(current.model_fields)


def _inner_model(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (found := _inner_model(argument)) is not None:
            return found
    return None


def _key_hint(key: str, known: Sequence[str]) -> str:
    """The key that was meant: another unit of the same name first, else the nearest spelling, else all of them."""
    stem = next((key.removesuffix(unit) for unit in _UNITS if key.endswith(unit)), key)
    same = [name for name in known if any(name == stem + unit for unit in _UNITS)]
    near = same or difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
