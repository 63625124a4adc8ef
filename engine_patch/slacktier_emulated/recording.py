# SPDX-License-Identifier: Apache-2.0
"""Row ids of each step, kept for a comparison with a cache simulation.

The file is a numpy .npz without pickles; L stands for each layer's id:

    key             | dtype, shape | what
    layer_ids       | i64 [L]      | lookup layers in order of use
    rank, tp        | i64          | only rows with row_id % tp == rank are recorded: what this rank looked up
    step_is_prefill | u8 [S]       | 1 for prefill, 0 for decode
    step_number     | i64 [S]      | the engine's count of steps, as in the report's first_step and end_step
    rows_L          | u32 [N_L]    | row ids of all steps, in the order they were asked for
    offsets_L       | i64 [S + 1]  | step s is rows_L[offsets_L[s]:offsets_L[s + 1]]
    cache_rows_L    | i64 [S]      | the cache's size in that step
    hits_L          | i64 [S]      | rows in the cache when the step began
    repeats_L       | i64 [S]      | rows asked for again in the same step
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError, SlackTierError
from slacktier_emulated.scheduler import Phase
from slacktier_emulated.step import StepRecord

Ids = npt.NDArray[np.int64]


def check_record_path(path: Path) -> None:
    """Raises ConfigError for a path that could not be written at the end."""
    if path.is_dir():
        raise ConfigError(f"--record-lookups {path}: is a directory", hint=f"name a file: {path / 'lookups.npz'}")
    if not path.parent.is_dir():
        raise ConfigError(f"--record-lookups {path}: no such directory: {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--record-lookups {path}: no permission to write in {path.parent}")


class LookupRecorder:
    """Collects lookups in memory until `limit` of them, all layers together; later steps are left out."""

    def __init__(self, path: Path, limit: int, layer_ids: Sequence[int], *, rank: int, tp: int) -> None:
        check_record_path(path)
        self.path = path
        self.is_full = False
        self._left = limit
        self._layer_ids = tuple(layer_ids)
        self._rank, self._tp = rank, tp
        self._rows: list[list[npt.NDArray[np.uint32]]] = [[] for _ in layer_ids]
        self._steps: list[tuple[int, int]] = []
        self._counts: list[list[tuple[int, int, int]]] = [[] for _ in layer_ids]

    @property
    def step_count(self) -> int:
        return len(self._steps)

    def add(
        self, step: int, phase: Phase, row_ids: Sequence[Ids], record: StepRecord, cache_rows: Sequence[int]
    ) -> None:
        owned = [ids if self._tp == 1 else ids[ids % self._tp == self._rank] for ids in row_ids]
        needed = sum(len(ids) for ids in owned)
        if self.is_full or needed > self._left:
            self.is_full = True
            return
        self._left -= needed
        self._steps.append((step, int(phase is Phase.PREFILL)))
        for index, (ids, layer) in enumerate(zip(owned, record.layers, strict=True)):
            self._rows[index].append(ids.astype(np.uint32))
            self._counts[index].append((cache_rows[index], layer.hits, layer.repeats))

    def save(self) -> None:
        """Write the file; it appears whole or not at all. Raises SlackTierError if it cannot be written."""
        steps = np.array(self._steps, np.int64).reshape(-1, 2)
        arrays: dict[str, Any] = {
            "layer_ids": np.array(self._layer_ids, np.int64),
            "rank": np.int64(self._rank),
            "tp": np.int64(self._tp),
            "step_number": steps[:, 0],
            "step_is_prefill": steps[:, 1].astype(np.uint8),
        }
        for layer_id, rows, counts in zip(self._layer_ids, self._rows, self._counts, strict=True):
            by_step = np.array(counts, np.int64).reshape(-1, 3)
            arrays[f"rows_{layer_id}"] = np.concatenate(rows) if rows else np.empty(0, np.uint32)
            arrays[f"offsets_{layer_id}"] = np.cumsum([0, *(len(ids) for ids in rows)], dtype=np.int64)
            for column, name in enumerate(("cache_rows", "hits", "repeats")):
                arrays[f"{name}_{layer_id}"] = by_step[:, column]
        scratch = self.path.with_name(self.path.name + ".part")
        try:
            with scratch.open("wb") as file:
                np.savez(file, **arrays)
            scratch.replace(self.path)
        except OSError as exc:
            scratch.unlink(missing_ok=True)
            raise SlackTierError(f"--record-lookups {self.path}: not written: {exc.strerror or exc}") from exc
