# SPDX-License-Identifier: Apache-2.0
"""Writes a test checkpoint whose every row is a function of its id: streamed, whole or not there at all."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from slacktier.errors import ConfigError, TierError
from slacktier.pattern import METADATA_KEY
from slacktier.region import open_error
from slacktier_native.pages import pattern_fill
from slacktier_tierd.aligned import Bytes, write_at
from slacktier_tierd.checkpoint import INDEX_NAME
from slacktier_tierd.checkpoint_layout import CheckpointLayout, ConstantTensor, PatternTensor
from slacktier_tierd.pipeline import run_ordered
from slacktier_tierd.report import GIB, Progress, no_progress

_CHUNK_BYTES: Final = 8 << 20
_FLUSH_BYTES: Final = 256 << 20  # dirty page cache that a run may hold


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive rows of one tensor and where they go in their file."""

    tensor: PatternTensor
    row_first: int
    row_count: int
    offset: int


def write_checkpoint(
    directory: Path, layout: CheckpointLayout, *, threads: int = 4, progress: Progress = no_progress
) -> None:
    """Write the checkpoint to a directory that does not exist yet; after a failure or a kill it still does not.

    raises  ConfigError if it exists, or if the disk is too small for it; TierError if the disk fails
    """
    directory = directory.absolute()
    _check_space(directory, layout.byte_count)
    with _new_directory(directory) as new:
        done = 0
        for name, tensors in layout.files.items():
            _write_file(new / name, tensors, layout.user_seed, threads, _Shifted(progress, done, layout.byte_count))
            done += sum(tensor.byte_count for tensor in tensors)
        _write_json(new / "config.json", {**layout.config, "_name_or_path": _model_name(layout)})
        if len(layout.files) > 1:
            _write_json(new / INDEX_NAME, _index(layout))
        new.rename(directory)


@dataclass(frozen=True, slots=True)
class _Shifted:
    """Progress of one file as part of all files."""

    progress: Progress
    before: int
    total: int

    def __call__(self, done_bytes: int) -> None:
        self.progress("write", self.before + done_bytes, self.total)


def _model_name(layout: CheckpointLayout) -> str:
    rows = max(layout.rows.values())
    return f"slacktier-test/{layout.family}-{rows}-rows-seed-{layout.user_seed}"


def _index(layout: CheckpointLayout) -> dict[str, Any]:
    weight_map = {tensor.name: name for name, tensors in layout.files.items() for tensor in tensors}
    return {"metadata": {"total_size": layout.byte_count}, "weight_map": weight_map}


def _check_space(directory: Path, byte_count: int) -> None:
    if directory.exists():
        raise ConfigError(f"{directory}: exists; nothing is written over", hint="name another directory or remove it")
    if not directory.parent.is_dir():
        raise ConfigError(f"{directory}: no such directory: {directory.parent}")
    disk = os.statvfs(directory.parent)
    free = disk.f_bavail * disk.f_frsize
    if byte_count > free:
        raise ConfigError(
            f"{directory}: the checkpoint needs {byte_count / GIB:.3f} GiB, {free / GIB:.3f} GiB are free"
        )


@contextmanager
def _new_directory(directory: Path) -> Iterator[Path]:
    """A directory beside the wanted one, locked; gone again unless the caller renames it."""
    new = directory.parent / f".{directory.name}.slacktier-new"
    try:
        new.mkdir(exist_ok=True)
        fd = os.open(new, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise open_error(new, exc) from exc
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ConfigError(f"{directory}: another process is writing it") from exc
        for left in new.iterdir():  # by a run that was killed
            left.unlink()
        try:
            yield new
        finally:
            if new.exists():
                shutil.rmtree(new)
    finally:
        os.close(fd)


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(fields, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def header_bytes(tensors: Sequence[PatternTensor | ConstantTensor], user_seed: int) -> bytes:
    """Length and JSON of a safetensors header, padded with spaces to 8 bytes as the format asks."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", METADATA_KEY: str(user_seed)}}
    at = 0
    for tensor in tensors:
        header[tensor.name] = {
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + tensor.byte_count],
        }  # fmt: skip
        at += tensor.byte_count
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def _write_file(
    path: Path, tensors: Sequence[PatternTensor | ConstantTensor], user_seed: int, threads: int, progress: _Shifted
) -> None:
    head = header_bytes(tensors, user_seed)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(fd, 0, len(head) + sum(tensor.byte_count for tensor in tensors))
        write_at(fd, np.frombuffer(head, np.uint8), 0)
        pieces = _pieces(fd, tensors, len(head))
        _write_pieces(fd, pieces, threads, progress)
        os.fsync(fd)
    except OSError as exc:
        raise TierError(
            f"{path}: write failed: {exc.strerror}", tier="source", operation="write", target=str(path),
            errno=exc.errno or 0,
        ) from exc  # fmt: skip
    finally:
        os.close(fd)


def _pieces(fd: int, tensors: Sequence[PatternTensor | ConstantTensor], offset: int) -> list[_Piece]:
    """Writes the constants, returns the rest in chunks."""
    pieces: list[_Piece] = []
    for tensor in tensors:
        if isinstance(tensor, ConstantTensor):
            write_at(fd, np.frombuffer(tensor.value, np.uint8), offset)
        else:
            rows = max(1, _CHUNK_BYTES // tensor.row_bytes)
            for first in range(0, tensor.row_count, rows):
                count = min(rows, tensor.row_count - first)
                at = offset + first * tensor.row_bytes
                pieces.append(_Piece(tensor, tensor.row_first + first, count, at))
        offset += tensor.byte_count
    return pieces


def _write_pieces(fd: int, pieces: Sequence[_Piece], threads: int, progress: _Shifted) -> None:
    def scratch() -> Bytes:
        return np.empty(_CHUNK_BYTES, np.uint8)

    def work(index: int, buffer: Bytes) -> int:
        piece = pieces[index]
        rows = buffer[: piece.row_count * piece.tensor.row_bytes]
        _fill(piece, rows)
        write_at(fd, rows, piece.offset)
        return rows.nbytes

    done, flushed = 0, 0
    with closing(run_ordered(0, len(pieces), scratch, work, threads=threads)) as written:
        for count in written:
            done += count
            if done - flushed >= _FLUSH_BYTES:
                os.fdatasync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                flushed = done
            progress(done)


def _fill(piece: _Piece, rows: Bytes) -> None:
    tensor, none = piece.tensor, rows[:0]
    if tensor.is_scale:
        pattern_fill(tensor.seed, piece.row_first, piece.row_count, 0, tensor.row_bytes, none, rows)
    else:
        pattern_fill(tensor.seed, piece.row_first, piece.row_count, tensor.row_bytes, 0, rows, None)
