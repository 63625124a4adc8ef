# SPDX-License-Identifier: Apache-2.0
"""A safetensors checkpoint on disk: which file holds which tensor, its config, its name. Loads no tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier.region import open_error
from slacktier_tierd.safetensors_header import SafetensorsFile, TensorEntry, read_header

INDEX_NAME: Final = "model.safetensors.index.json"
CONFIG_NAME: Final = "config.json"
_JSON_BYTES_MAX: Final = 64 << 20


def read_json_object(path: Path) -> dict[str, Any]:
    """A small JSON object from outside; raises ConfigError naming the file and the fault."""
    try:
        with path.open("rb") as file:
            raw = file.read(_JSON_BYTES_MAX + 1)
    except OSError as exc:
        raise open_error(path, exc) from exc
    if len(raw) > _JSON_BYTES_MAX:
        raise ConfigError(f"{path}: more than {_JSON_BYTES_MAX} bytes")
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: a JSON {type(found).__name__}, expected an object")
    return found


@dataclass(frozen=True)
class Checkpoint:
    """Tensor names to files. Headers are read when a tensor of theirs is asked for.

    files  tensor name -> file, by the index, or by the headers where there is no index
    """

    path: Path
    files: Mapping[str, Path]
    _headers: dict[Path, SafetensorsFile] = field(default_factory=dict, repr=False)

    def header(self, path: Path) -> SafetensorsFile:
        if path not in self._headers:
            self._headers[path] = read_header(path)
        return self._headers[path]

    def tensor(self, name: str) -> TensorEntry:
        """Where the tensor lies; raises ConfigError if the index or its file does not have it."""
        if name not in self.files:
            raise ConfigError(f"{self.path}: no tensor {name!r}", hint=self._nearest(name))
        found = self.header(self.files[name]).tensors.get(name)
        if found is None:
            raise ConfigError(f"{self.files[name]}: no tensor {name!r}, though {INDEX_NAME} says so")
        return found

    def metadata(self, name: str) -> Mapping[str, str]:
        """__metadata__ of the file that holds this tensor."""
        return self.header(self.files[name]).metadata

    def _nearest(self, name: str) -> str:
        last = name.rsplit(".", 3)[1:]
        alike = sorted(other for other in self.files if other.rsplit(".", 3)[1:] == last)
        return f"it has {', '.join(alike[:4])}" if alike else f"it has {len(self.files)} tensors, none alike"

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json beside the tensors, or {} where there is none."""
        path = (self.path if self.path.is_dir() else self.path.parent) / CONFIG_NAME
        return read_json_object(path) if path.exists() else {}

    @property
    def model(self) -> str:
        """config.json's _name_or_path, else the repository of a Hugging Face snapshot, else the directory's name."""
        named = self.config.get("_name_or_path")
        if isinstance(named, str) and named:
            return named
        return self._snapshot()[0] or self._directory.name

    @property
    def revision(self) -> str:
        """The commit of a Hugging Face snapshot directory, else ""."""
        return self._snapshot()[1]

    @property
    def _directory(self) -> Path:
        path = self.path.absolute()
        return path if self.path.is_dir() else path.parent

    def _snapshot(self) -> tuple[str, str]:
        directory = self._directory
        cached = directory.parent.parent.name
        if directory.parent.name != "snapshots" or not cached.startswith("models--"):
            return "", ""
        return cached.removeprefix("models--").replace("--", "/"), directory.name


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint directory, or one safetensors file; raises ConfigError if it is neither."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory")
    if path.is_file():
        return _from_headers(path, [path])
    if (path / INDEX_NAME).exists():
        return Checkpoint(path, _weight_map(path))
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{path}: neither {INDEX_NAME} nor a .safetensors file in it")
    return _from_headers(path, files)


def _from_headers(path: Path, files: list[Path]) -> Checkpoint:
    checkpoint = Checkpoint(path, {})
    names: dict[str, Path] = {}
    for file in files:
        for name in checkpoint.header(file).tensors:
            if name in names:
                raise ConfigError(f"{file}: tensor {name[:200]!r} is also in {names[name].name}")
            names[name] = file
    return Checkpoint(path, names, checkpoint._headers)


def _weight_map(directory: Path) -> dict[str, Path]:
    index = directory / INDEX_NAME
    found = read_json_object(index).get("weight_map")
    if not isinstance(found, dict):
        raise ConfigError(f"{index}: no weight_map")
    for name, file in found.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", "..") or "\0" in file:
            raise ConfigError(f"{index}: tensor {name[:200]!r} is in {file!r}, expected a file name")
    return {name: directory / file for name, file in found.items()}
