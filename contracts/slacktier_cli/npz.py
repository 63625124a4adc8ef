# SPDX-License-Identifier: Apache-2.0
"""Reads .npz files that may hold anything: no pickles, and nothing allocated that the file cannot fill."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError

Array = npt.NDArray[Any]

_DEFLATE_RATIO_MAX: Final = 1032  # no deflate stream expands by more
_UNREADABLE: Final = (
    zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, OSError,
)  # fmt: skip


def read_npz(path: Path, required: Sequence[str], optional: Sequence[str] = (), *, what: str) -> dict[str, Array]:
    """The named arrays of a file; raises ConfigError that begins with `what` and the path."""
    if not path.is_file():
        raise ConfigError(f"{what} {path}: {'not a regular file' if path.exists() else 'no such file'}")
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if missing := [key for key in required if f"{key}.npy" not in names]:
                raise ConfigError(f"{what} {path}: no array {missing[0]}")
            keys = [key for key in (*required, *optional) if f"{key}.npy" in names]
            return {key: _read_array(archive, key) for key in keys}
    except _RefusedError as exc:
        raise ConfigError(f"{what} {path}: {exc}") from exc
    except _UNREADABLE as exc:
        raise ConfigError(f"{what} {path}: not a readable .npz: {exc}") from exc


class _RefusedError(ValueError):
    """An array that is not loaded, and why."""


def _read_array(archive: zipfile.ZipFile, key: str) -> Array:
    member = archive.getinfo(f"{key}.npy")
    if member.file_size > _DEFLATE_RATIO_MAX * max(member.compress_size, 1):
        raise _RefusedError(f"{key}: {member.file_size} bytes claimed for {member.compress_size} stored")
    with archive.open(member) as stream:
        # The header is checked against the member's size before numpy allocates what it asks for.
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise _RefusedError(f"{key}: .npy version {version}, expected 1.0 or 2.0")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        if dtype.hasobject:
            raise _RefusedError(f"{key}: holds Python objects, which are never loaded")
        byte_count = dtype.itemsize
        for extent in shape:
            byte_count *= extent
        if byte_count > member.file_size:
            raise _RefusedError(f"{key}: shape {shape} of {dtype} does not fit its {member.file_size} bytes")
    with archive.open(member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        return array
