# SPDX-License-Identifier: Apache-2.0
"""Rows as the checkpoint has them, through the engine's own arithmetic. Tensors are mapped, never loaded.

Tensor names: sglang 0.5.22 and 0.5.23, models/deepseek_v41.py and models/qwen4_exp.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from slacktier.errors import ConfigError
from slacktier.page import RowFormat
from slacktier_engine.step_path import TableShape

_INDEX: Final = "model.safetensors.index.json"
_PLE_SHARD: Final = re.compile(r".*\blayers\.(\d+)\..*ngram_embedding\.shard_(\d+)\.weight")


class CheckpointRows:
    """Rows of the tables of one checkpoint directory.

    stock  the engine's EngramEmbedding, for its arithmetic; only Engram tables need it
    raises ConfigError where the directory has no safetensors file, or a table's tensor is missing
    """

    def __init__(self, directory: Path, stock: Any = None) -> None:
        self._directory = directory
        self._files = _files(directory)
        self._stock = stock
        self._tensors: dict[str, torch.Tensor] = {}

    def rows(self, table: TableShape, row_ids: torch.Tensor) -> torch.Tensor:
        """row_ids [n] int64 on the CPU -> [n, dim] bf16."""
        if table.row_format is RowFormat.FP8_E4M3_BLOCK_E8M0:
            return self._engram_rows(table, row_ids)
        return self._ple_rows(table, row_ids)

    def _engram_rows(self, table: TableShape, row_ids: torch.Tensor) -> torch.Tensor:
        from slacktier_engine.engram import table_lookup

        weight, scale = (
            self._tensor(self._name(f"layers.{table.layer_id}.engram.embed.{part}")) for part in ("weight", "scale")
        )
        return table_lookup(self._stock, weight, scale, row_ids)

    def _ple_rows(self, table: TableShape, row_ids: torch.Tensor) -> torch.Tensor:
        shards = self._ple_shards(table.layer_id)
        shard_rows = self._tensor(shards[0]).shape[0]
        rows = torch.empty((len(row_ids), table.dim), dtype=torch.bfloat16)
        for index in torch.unique(row_ids // shard_rows).tolist():
            here = row_ids // shard_rows == index
            rows[here] = self._tensor(shards[index])[row_ids[here] - index * shard_rows].to(torch.bfloat16)
        return rows

    def _ple_shards(self, layer_id: int) -> list[str]:
        found = {}
        for name in self._files:
            if (shard := ple_shard(name)) is not None and shard[0] == layer_id:
                found[shard[1]] = name
        if not found or sorted(found) != list(range(len(found))):
            raise ConfigError(f"{self._directory}: layer {layer_id} has no whole ...ngram_embedding.shard_N.weight")
        return [found[index] for index in range(len(found))]

    def _name(self, name: str) -> str:
        for candidate in (name, f"model.{name}"):
            if candidate in self._files:
                return candidate
        raise ConfigError(
            f"{self._directory}: no tensor {name}, so rows cannot be checked",
            hint='name the checkpoint that was staged: check: {checkpoint: DIR}, or check: {checkpoint: "none"}',
        )

    def _tensor(self, name: str) -> torch.Tensor:
        """Mapped from its file: only the rows that are looked at are read."""
        if name not in self._tensors:
            from safetensors import safe_open

            with safe_open(self._files[name], framework="pt", device="cpu") as file:
                self._tensors[name] = file.get_tensor(name)
        return self._tensors[name]


def ple_shard(name: str) -> tuple[int, int] | None:
    """(layer, shard) of a PLE table's tensor; None for any other, and for the draft model's."""
    match = _PLE_SHARD.fullmatch(name)
    return (int(match[1]), int(match[2])) if match and "mtp" not in name else None


def _files(directory: Path) -> Mapping[str, Path]:
    """Tensor name -> file."""
    index = directory / _INDEX
    if index.exists():
        found = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: directory / file for name, file in found.items()}
    from safetensors import safe_open

    names: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt", device="cpu") as file:
            names.update(dict.fromkeys(file.keys(), path))
    if not names:
        raise ConfigError(
            f"{directory}: no safetensors file, so rows cannot be checked",
            hint='name the checkpoint: check: {checkpoint: DIR}, or check: {checkpoint: "none"}',
        )
    return names
