# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench step-path`: the CPU side of the step path alone, with this program in the place of the GPU.

Ids are written where a GPU would publish them; the thread looks them up, the readers copy the rows, the flags go up.
Instants are the path's own records, counted from when the thread saw the ids.
"""

from __future__ import annotations

import ctypes
import time
import uuid
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import DeadlineMissedError
from slacktier.page import RowFormat, State, Superblock
from slacktier_native.core import LayerSetup, LookupCore, MemorySpec
from slacktier_native.memory_table import MemoryTable, map_memory
from slacktier_native.pages import pattern_fill
from slacktier_native.step_path import MAIL_BYTES, MAIL_READY, StepMemory, StepPath, StepSettings, answer_lines

LAYER_IDS: Final = (1, 14)
COLUMNS: Final = 24
_LINE_BYTES: Final = 272
_WARM_LOOKUPS: Final = 6144
_TIMEOUT_S: Final = 10.0


def _table(row_count: int) -> MemoryTable:
    sb = Superblock(
        table_uuid=uuid.UUID(int=1), layer_id=1, epoch=1, row_count=row_count, payload_bytes=256, scale_bytes=8,
        row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="pattern",
    )  # fmt: skip
    weights, scales = np.empty((row_count, 256), np.uint8), np.empty((row_count, 8), np.uint8)
    pattern_fill(1, 0, row_count, 256, 8, weights, scales)
    return MemoryTable(replace(sb, state=State.COMPLETE, staged_pages=sb.page_count), weights, scales)


class _Gpu:
    """Memory and moves of the GPU's side: publish ids, wait for each flag, take it down."""

    def __init__(self, lookups_max: int) -> None:
        ids_bytes = -(-8 * lookups_max // 64) * 64
        answer_bytes = -(-(answer_lines(lookups_max) + _LINE_BYTES * lookups_max) // 64) * 64
        self._memory = map_memory(len(LAYER_IDS) * (MAIL_BYTES + ids_bytes + answer_bytes))
        self._step = 0
        at = int(self._memory.ctypes.data)
        self.layers: list[StepMemory] = []
        for _ in LAYER_IDS:
            self.layers.append(StepMemory(at, at + MAIL_BYTES, at + MAIL_BYTES + ids_bytes, _LINE_BYTES))
            at += MAIL_BYTES + ids_bytes + answer_bytes

    def step(self, ids: list[npt.NDArray[np.int64]]) -> None:
        self._step += 1
        for memory, layer_ids in zip(self.layers, ids, strict=True):
            ctypes.memmove(memory.row_ids, layer_ids.ctypes.data, layer_ids.nbytes)
            ctypes.c_uint64.from_address(memory.mail).value = layer_ids.size << 32 | self._step
        until_s = time.monotonic() + _TIMEOUT_S
        for memory in self.layers:
            ready = ctypes.c_uint32.from_address(memory.mail + MAIL_READY)
            while ready.value != 1:
                if time.monotonic() > until_s:
                    raise DeadlineMissedError(
                        f"step {self._step}: flag not raised after {_TIMEOUT_S:g} s",
                        tier="", operation="wait", target="step path",
                    )  # fmt: skip
            ready.value = 0


def run(
    *,
    tokens: int = 128,
    cache_rows: int = 1_000_000,
    hit_rates: tuple[float, ...] = (0.75, 0.45),
    steps: int = 200,
    gap_ms: float = 5.0,
    readers: int = 4,
    row_count: int = 4_000_000,
) -> dict[str, Any]:
    """Instants of a step in us per hit rate: p50 and p99. gap_ms: between steps, as a decode step has it."""
    rng = np.random.default_rng(1)
    lookups = tokens * COLUMNS
    per_layer = cache_rows // len(LAYER_IDS)
    resident = [rng.integers(0, row_count, per_layer // 2) for _ in LAYER_IDS]
    table = _table(row_count)
    core = LookupCore(
        [LayerSetup(i, (MemorySpec(table),), per_layer) for i in LAYER_IDS], lookups_max=max(lookups, _WARM_LOOKUPS),
        io_threads=readers, backend="posix", spin_us=100_000,
    )  # fmt: skip
    gpu = _Gpu(core.lookups_max)
    path = StepPath(core, gpu.layers, StepSettings(spin_ms=100))
    try:
        for first in range(0, per_layer // 2, _WARM_LOOKUPS):
            gpu.step([np.ascontiguousarray(known[first : first + _WARM_LOOKUPS]) for known in resident])
        cells = []
        for rate in hit_rates:
            path.check()
            for _ in range(steps):
                gpu.step([_draw(rng, known, row_count, lookups, rate) for known in resident])
                time.sleep(gap_ms / 1e3)
            cells.append(_cell(path.records()[-steps:], lookups))
    finally:
        path.close()
        core.close()
    return {"tokens": tokens, "cache_rows": cache_rows, "readers": readers, "gap_ms": gap_ms, "cells": cells}


def _draw(
    rng: np.random.Generator, known: npt.NDArray[np.int64], row_count: int, count: int, rate: float
) -> npt.NDArray[np.int64]:
    fresh = rng.integers(0, row_count, count)
    return np.where(rng.random(count) < rate, known[rng.integers(0, known.size, count)], fresh)


def _cell(records: npt.NDArray[np.void], lookups: int) -> dict[str, Any]:
    found = int((records["hits"] + records["repeats"]).sum())
    cell: dict[str, Any] = {"hit_rate": found / (len(LAYER_IDS) * lookups * len(records))}
    for name in ("first_read", "first_resolved", "resolved", "first_ready", "ready"):
        low, high = np.percentile(records[f"{name}_ns"] / 1e3, [50, 99])
        cell[f"{name}_us"] = {"p50": round(float(low), 2), "p99": round(float(high), 2)}
    return cell
