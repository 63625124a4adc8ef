# SPDX-License-Identifier: Apache-2.0
"""Finds a lookup table in a checkpoint: V4.1 Engram, Qwen4Exp PLE, or any tensor by name.

A table is described by the byte ranges of its tensors; nothing is read here but headers.
Tensor names: sglang 0.5.22 and 0.5.23, models/deepseek_v41.py and models/qwen4_exp.py.
"""

from __future__ import annotations

import json
import math
import re
import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError
from slacktier.page import RowFormat, Superblock
from slacktier.pattern import METADATA_KEY, source_text
from slacktier_rowids.config import section
from slacktier_rowids.engram import flatten
from slacktier_tierd.checkpoint import Checkpoint
from slacktier_tierd.safetensors_header import TensorEntry

_NAMESPACE: Final = uuid.UUID("5fd9da5e-6c3c-5f34-9d56-0d3c9f9c2c11")  # of table uuids; any constant would do
_V41_TENSOR: Final = re.compile(r"(?:model\.)?layers\.(\d+)\.engram\.embed\.weight")
_QWEN_SHARD: Final = re.compile(r"(.*\blayers\.(\d+)\..*ngram_embedding)\.shard_(\d+)\.weight")
E8M0_BLOCK: Final = 32  # V4.1: one scale per 32 values


class Family(StrEnum):
    """Whose tensor names a checkpoint uses."""

    V41 = "v41"
    QWEN38 = "qwen3.8"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one tensor: row_count * row bytes from `offset` of the file on."""

    path: Path
    offset: int
    row_count: int


@dataclass(frozen=True, slots=True)
class Table:
    """One table's shape, identity and the byte ranges of its rows in natural order.

    weights, scales  segments in row order; scales is empty where a row has none
    source           origin for the superblock, with the pattern's seed where the rows follow one
    """

    model: str
    revision: str
    layer_id: int
    row_count: int
    payload_bytes: int
    scale_bytes: int
    row_format: RowFormat
    tensor_names: tuple[str, ...]
    tensor_scale: float
    source: str
    weights: tuple[Segment, ...] = ()
    scales: tuple[Segment, ...] = ()

    @property
    def table_uuid(self) -> uuid.UUID:
        """The same for every replica: model, revision, layer, tensors, rows and widths; not the bytes."""
        parts = (
            self.model, self.revision, self.layer_id, *self.tensor_names, self.row_count, self.payload_bytes,
            self.scale_bytes, int(self.row_format),
        )  # fmt: skip
        return uuid.uuid5(_NAMESPACE, json.dumps(parts))

    def superblock(self, *, epoch: int = 1, stripe_count: int = 1) -> Superblock:
        """The superblock of a new staging of this table, nothing staged yet; raises ConfigError for its limits."""
        return Superblock(
            table_uuid=self.table_uuid, layer_id=self.layer_id, epoch=epoch, row_count=self.row_count,
            payload_bytes=self.payload_bytes, scale_bytes=self.scale_bytes, row_format=self.row_format,
            model=self.model, revision=self.revision, source=self.source, stripe_count=stripe_count,
            tensor_scale=self.tensor_scale,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RawWidths:
    """A table of any width: tensors by name, bytes per row by number."""

    tensor: str
    payload_bytes: int
    scale_tensor: str = ""
    scale_bytes: int = 0


def detect_family(checkpoint: Checkpoint) -> Family:
    """V4.1 or Qwen by the tensor names; raises ConfigError if neither is there."""
    if any(_V41_TENSOR.fullmatch(name) for name in checkpoint.files):
        return Family.V41
    if any(_qwen_shard(name) for name in checkpoint.files):
        return Family.QWEN38
    raise ConfigError(
        f"{checkpoint.path}: no tensor layers.N.engram.embed.weight or ...ngram_embedding.shard_N.weight",
        hint="name the tensor and its widths: --tensor NAME --payload-bytes N",
    )


def table_layers(checkpoint: Checkpoint, family: Family) -> list[int]:
    """Layer ids that have a table, ascending."""
    if family is Family.V41:
        found = {match.group(1) for name in checkpoint.files if (match := _V41_TENSOR.fullmatch(name))}
    else:
        found = {match.group(2) for name in checkpoint.files if (match := _qwen_shard(name))}
    return sorted(int(layer) for layer in found)


def find_table(
    checkpoint: Checkpoint, layer_id: int, *, family: Family, raw: RawWidths | None = None, model: str = "",
    revision: str = "",
) -> Table:  # fmt: skip
    """One layer's table; model and revision default to what the checkpoint calls itself.

    raises  ConfigError for a missing or mis-shaped tensor or a wrong dtype, naming tensor, found and expected
    """
    model, revision = model or checkpoint.model, revision or checkpoint.revision
    if family is Family.V41:
        return _v41_table(checkpoint, layer_id, model, revision)
    if family is Family.QWEN38:
        return _qwen_table(checkpoint, layer_id, model, revision)
    if raw is None:
        raise ConfigError("a table by name needs --tensor and --payload-bytes")
    return _raw_table(checkpoint, layer_id, raw, model, revision)


def _expect(entry: TensorEntry, dtypes: Sequence[str], shape: tuple[int | None, ...]) -> None:
    where = f"{entry.path}: tensor {entry.name!r}"
    if entry.dtype not in dtypes:
        raise ConfigError(f"{where}: dtype {entry.dtype}, expected {' or '.join(dtypes)}")
    matches = len(entry.shape) == len(shape) and all(
        want is None or size == want for size, want in zip(entry.shape, shape, strict=True)
    )
    if not matches or 0 in entry.shape[1:]:
        expected = ["any" if size is None else str(size) for size in shape]
        raise ConfigError(f"{where}: shape {list(entry.shape)}, expected [{', '.join(expected)}]")


def _segment(entry: TensorEntry) -> Segment:
    return Segment(entry.path, entry.begin, entry.shape[0])


def _pattern_source(checkpoint: Checkpoint, tensor: str) -> str:
    seed = checkpoint.metadata(tensor).get(METADATA_KEY, "")
    return source_text("safetensors", int(seed) if seed.isascii() and seed.isdigit() and len(seed) <= 15 else None)


def _v41_table(checkpoint: Checkpoint, layer_id: int, model: str, revision: str) -> Table:
    prefix = next(
        (p for p in ("", "model.") if f"{p}layers.{layer_id}.engram.embed.weight" in checkpoint.files), ""
    )  # fmt: skip
    names = tuple(f"{prefix}layers.{layer_id}.engram.embed.{part}" for part in ("weight", "scale"))
    weight, scale = (checkpoint.tensor(name) for name in names)
    _expect(weight, ["F8_E4M3"], (_v41_rows(checkpoint, layer_id), flatten(checkpoint.config).get("engram_head_dim")))
    row_count, dim = weight.shape
    _expect(scale, ["F8_E8M0"], (row_count, -(-dim // E8M0_BLOCK)))
    return Table(
        model, revision, layer_id, row_count, dim, scale.shape[1], RowFormat.FP8_E4M3_BLOCK_E8M0,
        tuple(name.removeprefix("model.") for name in names), 1.0, _pattern_source(checkpoint, weight.name),
        (_segment(weight),), (_segment(scale),),
    )  # fmt: skip


def _v41_rows(checkpoint: Checkpoint, layer_id: int) -> int | None:
    """Rows that config.json promises for the layer, or None where it says nothing."""
    config = flatten(checkpoint.config)
    layers, rows = config.get("engram_layer_ids"), config.get("engram_num_embeddings")
    if isinstance(layers, list) and isinstance(rows, list) and layer_id in layers and len(rows) == len(layers):
        found = rows[layers.index(layer_id)]
        return found if type(found) is int else None
    return None


def _qwen_table(checkpoint: Checkpoint, layer_id: int, model: str, revision: str) -> Table:
    shards = _qwen_shards(checkpoint, layer_id)
    dim = shards[0].shape[1] if len(shards[0].shape) == 2 else None
    for shard in shards:
        _expect(
            shard, [shards[0].dtype] if shards[0].dtype in ("F8_E4M3", "BF16") else ["F8_E4M3", "BF16"], (None, dim)
        )
    row_count = sum(shard.shape[0] for shard in shards)
    _check_split(shards, row_count)
    payload_bytes = (shards[0].end - shards[0].begin) // shards[0].shape[0]
    is_fp8 = shards[0].dtype == "F8_E4M3"
    return Table(
        model, revision, layer_id, row_count, payload_bytes, 0, RowFormat.FP8_E4M3 if is_fp8 else RowFormat.BF16,
        (shards[0].name.rsplit(".", 2)[0].replace("model.language_model.", "model."),),
        _tensor_scale(checkpoint, shards[0].name.rsplit(".", 2)[0] + ".weight_scale"),
        _pattern_source(checkpoint, shards[0].name), tuple(_segment(shard) for shard in shards if shard.shape[0]),
    )  # fmt: skip


def _qwen_shard(name: str) -> re.Match[str] | None:
    """A shard of a model layer's table; the engine passes over the draft model's tensors (mtp), and so do we."""
    return None if "mtp" in name else _QWEN_SHARD.fullmatch(name)


def _qwen_shards(checkpoint: Checkpoint, layer_id: int) -> list[TensorEntry]:
    matches = [match for name in checkpoint.files if (match := _qwen_shard(name)) and int(match.group(2)) == layer_id]
    prefixes = sorted({match.group(1) for match in matches})
    if len(prefixes) > 1:
        raise ConfigError(f"{checkpoint.path}: layer {layer_id} has two tables: {prefixes[0]} and {prefixes[1]}")
    by_index = {int(match.group(3)): match.group(0) for match in matches}
    text = section(checkpoint.config, "text_config") or checkpoint.config
    promised = text.get("split_ngram_parts")
    count = promised if type(promised) is int and promised > 0 else len(by_index)
    if not by_index or count > 1 << 20:
        raise ConfigError(f"{checkpoint.path}: layer {layer_id} has no ...ngram_embedding.shard_0.weight")
    missing = [index for index in range(count) if index not in by_index]
    if missing or len(by_index) != count:
        raise ConfigError(
            f"{checkpoint.path}: layer {layer_id} has {len(by_index)} ngram_embedding shards, expected {count}"
            + (f"; shard_{missing[0]} is missing" if missing else "")
        )
    return [checkpoint.tensor(by_index[index]) for index in range(count)]


def _check_split(shards: Sequence[TensorEntry], row_count: int) -> None:
    """Shard i begins at row i * ceil(rows / shards); anything else would put rows in other places than the engine."""
    size, first = -(-row_count // len(shards)), 0
    if row_count == 0:
        raise ConfigError(f"{shards[0].path}: tensor {shards[0].name!r}: no rows")
    for shard in shards:
        expected = max(0, min(size, row_count - first))
        if shard.shape[0] != expected:
            raise ConfigError(f"{shard.path}: tensor {shard.name!r}: {shard.shape[0]} rows, expected {expected}")
        first += expected


def _tensor_scale(checkpoint: Checkpoint, name: str) -> float:
    """The table's one scale, a BF16 or F32 tensor of one value; 1.0 where the checkpoint has none."""
    if name not in checkpoint.files:
        return 1.0
    entry = checkpoint.tensor(name)
    if entry.dtype not in ("BF16", "F32") or math.prod(entry.shape) != 1:
        raise ConfigError(f"{entry.path}: tensor {name!r}: {entry.dtype} {list(entry.shape)}, expected one BF16 or F32")
    with entry.path.open("rb") as file:
        file.seek(entry.begin)
        raw = file.read(entry.end - entry.begin)
    (scale,) = struct.unpack("<f", raw.rjust(4, b"\0"))
    if not math.isfinite(scale) or scale <= 0:
        raise ConfigError(f"{entry.path}: tensor {name!r}: scale {scale}, expected a positive number")
    return float(scale)


def _raw_table(checkpoint: Checkpoint, layer_id: int, raw: RawWidths, model: str, revision: str) -> Table:
    names = (raw.tensor, raw.scale_tensor) if raw.scale_bytes else (raw.tensor,)
    if bool(raw.scale_tensor) != bool(raw.scale_bytes):
        raise ConfigError("--scale-tensor and --scale-bytes go together")
    weight = checkpoint.tensor(raw.tensor)
    row_count = _raw_rows(weight, raw.payload_bytes)
    scales: tuple[Segment, ...] = ()
    if raw.scale_bytes:
        scale = checkpoint.tensor(raw.scale_tensor)
        if _raw_rows(scale, raw.scale_bytes) != row_count:
            raise ConfigError(f"{scale.path}: tensor {scale.name!r}: {scale.shape[0]} rows, expected {row_count}")
        scales = (_segment(scale),)
    return Table(
        model, revision, layer_id, row_count, raw.payload_bytes, raw.scale_bytes, RowFormat.RAW, names, 1.0,
        _pattern_source(checkpoint, raw.tensor), (_segment(weight),), scales,
    )  # fmt: skip


def _raw_rows(entry: TensorEntry, row_bytes: int) -> int:
    rows = entry.shape[0] if entry.shape else 0
    if rows < 1 or row_bytes < 1 or rows * row_bytes != entry.end - entry.begin:
        raise ConfigError(
            f"{entry.path}: tensor {entry.name!r}: {entry.end - entry.begin} bytes in {rows} rows, "
            f"expected {row_bytes} bytes per row"
        )
    return rows
