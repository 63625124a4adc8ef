# SPDX-License-Identifier: Apache-2.0
"""Reads plan files and read-model files; every fault is one line that names the file and the place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from slacktier.errors import ConfigError
from slacktier.input_errors import config_error
from slacktier.plan_file import PlanFile
from slacktier.read_model_file import ReadModelFile
from slacktier_cli.planning.characterized import CurveFile, miss_specs

_FILE_BYTES_MAX = 4 << 20


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice instead of keeping the last one."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[object] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if isinstance(key, list | dict):
            raise ConfigError(f"line {key_node.start_mark.line + 1}: a key that is no plain value")
        if key in seen:
            raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_plan(path: Path) -> PlanFile:
    """The plan file, checked as far as its shape goes.

    A device's `read` may name a read-model file, and an entry of `misses` a characterization's JSON, as {file: ...};
    both relative to the plan file.
    """
    content = _read_yaml(path)
    devices, misses = content.get("devices"), content.get("misses")
    for index, device in enumerate(devices if isinstance(devices, list) else []):
        if isinstance(device, dict) and isinstance(device.get("read"), str):
            _include_read_model(path, index, device)
    if isinstance(misses, dict):
        for name, spec in misses.items():
            if isinstance(spec, dict):
                misses[name] = _included_curves(path, f"misses.{name}", spec, content.get("ranks", 1))
    try:
        return PlanFile.model_validate(content)
    except ValidationError as exc:
        raise config_error(exc, PlanFile, str(path)) from exc


def load_read_model(path: Path) -> ReadModelFile:
    """A read-model file as `slacktier measure reads` writes it."""
    try:
        return ReadModelFile.model_validate(_read_yaml(path))
    except ValidationError as exc:
        raise config_error(exc, ReadModelFile, str(path)) from exc


def _include_read_model(path: Path, index: int, device: dict[str, Any]) -> None:
    found = load_read_model(path.parent / device["read"])
    tier = device.setdefault("tier", found.tier.value)
    if tier != found.tier.value:
        raise ConfigError(
            f"{path}: devices[{index}]: tier {tier!r}, but {device['read']} was measured on {found.tier.value}"
        )
    device["read"] = found.read.model_dump()


def _included_curves(path: Path, where: str, spec: dict[str, Any], ranks: object) -> list[dict[str, Any]]:
    try:
        wanted = CurveFile.model_validate(spec)
    except ValidationError as exc:
        raise config_error(exc, CurveFile, f"{path}: {where}") from exc
    # A wrong number of ranks is found, and said, when the plan itself is checked.
    known = ranks if isinstance(ranks, int) and not isinstance(ranks, bool) and ranks > 0 else 1
    return miss_specs(path.parent, wanted, known)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        if not path.is_file() and path.exists():  # a FIFO would be waited for
            raise ConfigError(f"{path}: not a regular file, expected a plan or read-model file")
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    if len(raw) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path}: larger than {_FILE_BYTES_MAX >> 20} MiB, expected a plan or read-model file")
    try:
        content = yaml.load(raw.decode(), _Loader)  # noqa: S506 - a SafeLoader with one more check
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text") from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        at = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{path}: {at}not YAML: {getattr(exc, 'problem', None) or exc}") from exc
    except (RecursionError, ValueError) as exc:
        raise ConfigError(f"{path}: not YAML: {exc}") from exc
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: {type(content).__name__}, expected a mapping of keys")
    return content
