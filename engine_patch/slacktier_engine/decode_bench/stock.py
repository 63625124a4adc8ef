# SPDX-License-Identifier: Apache-2.0
"""The baseline: the engine's own hash and gather kernels, loaded from a file (never copied into this project)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from slacktier.errors import ConfigError
from slacktier_rowids.engram import EngramHasher

_KERNELS = "kernels/ops/embeddings"


def find_kernels(directory: Path | None) -> Path:
    """The directory with engram_gather.py and engram_hash.py: the given one, or an installed sglang's."""
    if directory is None:
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError("sglang is not installed", hint="install its wheel, or give --sglang-kernels DIR")
        directory = Path(spec.submodule_search_locations[0]) / _KERNELS
    for name in ("engram_gather.py", "engram_hash.py"):
        if not (directory / name).is_file():
            raise ConfigError(f"{directory / name}: no such file", hint="give the directory of sglang's engram kernels")
    return directory


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"stock_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class StockKernels:
    """hash: a decode step's row ids [T, L, C]; gather: rows of the pinned table."""

    def __init__(self, directory: Path, hasher: EngramHasher, token_map: torch.Tensor) -> None:
        self._hash = _load(directory / "engram_hash.py")
        self._gather = _load(directory / "engram_gather.py")
        device = token_map.device
        constants = hasher.constants
        self._constants: dict[str, Any] = {
            "token_map": token_map,
            "multipliers": torch.from_numpy(constants.multipliers.copy()).to(device),
            "primes": torch.from_numpy(constants.primes.copy()).to(device),
            "offsets": torch.from_numpy(constants.offsets.copy()).to(device),
            "pad_id": hasher.vocabulary.fill_code,
        }

    def hash(self, tokens: torch.Tensor, positions: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
        """tokens [T] int64, positions [T] int64, history [T, n - 1] int32 oldest first -> [T, L, C] int64."""
        ids, _ = self._hash.engram_hash_ids(
            tokens, positions, mode=self._hash.MODE_DECODE, history=history, **self._constants
        )
        found: torch.Tensor = ids
        return found

    def gather(
        self,
        weights: int,
        scales: int,
        ids: torch.Tensor,
        out: torch.Tensor,
        rows: tuple[int, int],
        *,
        sort_ids: bool,
    ) -> None:
        """Rows `ids` [N] of the table at these addresses into out [N, 256] bf16; zeros outside [rows[0], rows[1])."""
        self._gather.engram_gather(
            weights + rows[0] * 256, scales + rows[0] * 8, ids, out, 256, 32, rows[0], rows[1], sort_ids=sort_ids
        )
