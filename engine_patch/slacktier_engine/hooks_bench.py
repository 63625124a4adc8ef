# SPDX-License-Identifier: Apache-2.0
"""What the plugin's hooks cost a step on the host, beside the engine's own gather from a table in memory.

Runs where SGLang is installed. One V4.1-like table stands under both layers, once as the engine holds it and once as a
dram source. Arms alternate step by step over the same ids, and their rows are compared first.

    stock    the engine's lookup of both layers
    cached   ours, every row in the row cache
    missing  ours, no row cache: every row is read from memory and checked
"""

from __future__ import annotations

import json
import time
import uuid
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from slacktier.errors import ContractError
from slacktier.page import RowFormat, Superblock
from slacktier_engine import engram
from slacktier_engine.checker import Checker
from slacktier_engine.cpu_step import CpuStepPath
from slacktier_engine.lookups import LookupGroup
from slacktier_engine.runtime import EngineTier
from slacktier_engine.settings import OnMismatch, load_settings
from slacktier_engine.step_path import TableShape
from slacktier_native.core import LayerSetup, LookupCore
from slacktier_native.memory_table import MemoryTable
from slacktier_native.pages import pattern_fill
from slacktier_native.sources import MemorySpec

LAYERS: Final = (1, 14)
COLUMNS, DIM, SCALES = 24, 256, 8
HOT_ROWS: Final = 200_000  # what steps draw from, and what the cached arm holds
Times = dict[str, list[float]]


class HooksBench:
    """table_gib: of the engine's table; ours stands beside it, about 6 % larger."""

    def __init__(self, table_gib: float) -> None:
        from sglang.srt.layers import engram as stock

        self._stock = stock.EngramEmbedding
        rows = int(table_gib * (1 << 30)) // (DIM + SCALES)
        weights, scales = np.empty((rows, DIM), np.uint8), np.empty((rows, SCALES), np.uint8)
        pattern_fill(1, 0, rows, DIM, SCALES, weights, scales)
        sb = Superblock(
            table_uuid=uuid.UUID(int=1), layer_id=1, epoch=1, row_count=rows, payload_bytes=DIM, scale_bytes=SCALES,
            row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="pattern",
        )  # fmt: skip
        self._table = MemoryTable(sb, weights, scales)
        self._tensors = (
            torch.from_numpy(weights).view(torch.float8_e4m3fn),
            torch.from_numpy(scales).view(torch.float8_e8m0fnu),
        )
        self._rows = rows
        self._draw = np.random.default_rng(1)
        self._hot = self._draw.integers(0, rows, HOT_ROWS)
        self._arms = {"cached": self._tier(sb, 4 * HOT_ROWS), "missing": self._tier(sb, 0)}

    def _tier(self, sb: Superblock, cache_rows: int) -> tuple[EngineTier, list[Any]]:
        """A tier over the table in memory, and the two embeddings that ask it."""
        source = MemorySpec(self._table)
        core = LookupCore([LayerSetup(layer_id, (source,), min(cache_rows, self._rows)) for layer_id in LAYERS])
        described = [{"layer": k, "sources": [{"tier": "dram", "paths": ["memory"]}]} for k in LAYERS]
        tier = EngineTier(load_settings(json.dumps({"tables": described})))
        shapes = [TableShape(k, self._rows, DIM, RowFormat.FP8_E4M3_BLOCK_E8M0, COLUMNS) for k in LAYERS]
        path = CpuStepPath(core, [engram.dequantizer(self._stock, sb)] * len(LAYERS), tier.counts)
        checker = Checker(None, tier.counts, rate=0.0, on_mismatch=OnMismatch.FAIL)
        tier.adopt([LookupGroup(path, core, shapes, tier.counts, checker)])
        embedding = engram.tiered_embedding(self._stock, tier)
        return tier, [self._embedding(embedding, layer_id) for layer_id in LAYERS]

    def _embedding(self, kind: Any, layer_id: int) -> Any:
        made = kind.__new__(kind)
        nn.Module.__init__(made)
        made.dim, made.layer_id = DIM, layer_id
        return made

    def _ids(self, tokens: int) -> torch.Tensor:
        """[tokens, L, C] row ids of the hot set."""
        drawn = self._draw.choice(self._hot, (tokens, len(LAYERS), COLUMNS))
        return torch.from_numpy(drawn)

    def _stock_step(self, ids: torch.Tensor) -> list[torch.Tensor]:
        weight, scale = self._tensors
        return [engram.table_lookup(self._stock, weight, scale, ids[:, k]) for k in range(len(LAYERS))]

    def _our_step(self, arm: str, ids: torch.Tensor, times: Times | None = None) -> list[torch.Tensor]:
        tier, embeddings = self._arms[arm]
        batch = SimpleNamespace(forward_mode=_Decode(), out_cache_loc=torch.ones(len(ids), dtype=torch.int64))
        issue = engram.issue_after_hash(tier)
        started = time.perf_counter()
        issue(ids, None, None, batch)
        issued = time.perf_counter()
        rows = [embeddings[k](ids[:, k], batch) for k in range(len(LAYERS))]
        if times is not None:
            times[f"{arm} issue"].append(issued - started)
        return rows

    def check(self, tokens: int = 512) -> int:
        """Rows compared with the engine's, all arms; raises ContractError if one differs. Fills the cache."""
        compared = 0
        for first in range(0, 2 * HOT_ROWS, tokens * COLUMNS):
            hot = np.resize(self._hot[first % HOT_ROWS :], (tokens, 1, COLUMNS)).repeat(2, axis=1)
            ids = torch.from_numpy(hot)
            expected = self._stock_step(ids)
            for arm in self._arms:
                for found, wanted in zip(self._our_step(arm, ids), expected, strict=True):
                    if not torch.equal(found.view(torch.int16), wanted.view(torch.int16)):
                        raise ContractError(f"arm {arm}: rows differ from the engine's")
                    compared += found.shape[0] * COLUMNS
        return compared

    def run(self, tokens: int, steps: int) -> dict[str, Any]:
        """Times of one step with this many tokens: arm -> median and p99 in microseconds."""
        times: Times = {"stock": [], "cached": [], "missing": [], "cached issue": [], "missing issue": []}
        for step in range(steps + steps // 10):
            ids = self._ids(tokens)
            if step == steps // 10:  # what came before warmed up
                times = {name: [] for name in times}
            for arm in ("stock", "cached", "missing"):
                started = time.perf_counter()
                _ = self._stock_step(ids) if arm == "stock" else self._our_step(arm, ids, times)
                times[arm].append(time.perf_counter() - started)
        return {"tokens": tokens} | {name.replace(" ", "_"): _summary(values) for name, values in times.items()}

    def run_idle(self, steps: int) -> dict[str, Any]:
        """Times of the hook behind the hasher for a batch without tokens."""
        tier, _ = self._arms["cached"]
        issue, ids, times = engram.issue_after_hash(tier), self._ids(0), []
        for _ in range(steps):
            started = time.perf_counter()
            issue(ids, None, None, SimpleNamespace(forward_mode=_Decode()))
            times.append(time.perf_counter() - started)
        return {"tokens": 0, "idle": _summary(times)}

    def close(self) -> None:
        for tier, _ in self._arms.values():
            tier.close()


class _Decode:
    """A decode batch's forward mode, as far as the hooks ask."""

    def is_decode(self) -> bool:
        return True

    def is_target_verify(self) -> bool:
        return False

    def is_idle(self) -> bool:
        return False


def _summary(seconds: list[float]) -> dict[str, float]:
    found: npt.NDArray[np.float64] = np.percentile(np.array(seconds) * 1e6, [50, 99])
    return {"p50_us": round(float(found[0]), 2), "p99_us": round(float(found[1]), 2)}


def run(table_gib: float, steps: int, tokens: tuple[int, ...] = (1, 128)) -> dict[str, Any]:
    """All cells of one run."""
    bench = HooksBench(table_gib)
    try:
        compared = bench.check()
        cells = [bench.run_idle(steps), *(bench.run(count, steps) for count in tokens)]
    finally:
        bench.close()
    return {"table_gib": table_gib, "steps": steps, "rows_compared": compared, "cells": cells}
