# SPDX-License-Identifier: Apache-2.0
"""Rows without scales (Qwen3.8's PLE: 160 bytes of FP8, 320 of BF16): bits, and a layer's added time."""

from __future__ import annotations

import functools
import uuid
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from slacktier.page import RowFormat, State, Superblock
from slacktier_engine.decode_bench.measure import percentiles
from slacktier_engine.decode_bench.run import DecodeBench, log
from slacktier_engine.step import GpuStepPath
from slacktier_native.core import LayerSetup, LookupCore, MemorySpec
from slacktier_native.memory_table import MemoryTable, map_memory
from slacktier_native.pages import pattern_fill
from slacktier_native.placement import threads_on
from slacktier_native.step_path import StepSettings

COLUMNS: Final = 16
_LAYER: Final = 1
_FORMATS: Final = {160: RowFormat.FP8_E4M3, 320: RowFormat.BF16}


def measure(
    bench: DecodeBench, row_bytes: int, *, row_count: int = 4_000_000, tokens: int = 128, rounds: int = 120
) -> dict[str, Any]:
    """Drawn ids, six in ten from a hot set; each step's rows are compared with the table's."""
    device = bench.device
    rows = map_memory(row_count * row_bytes).reshape(row_count, row_bytes)
    pattern_fill(7, 0, row_count, row_bytes, 0, rows, np.empty((row_count, 0), np.uint8))
    sb = Superblock(
        table_uuid=uuid.UUID(int=row_bytes), layer_id=_LAYER, epoch=1, row_count=row_count, payload_bytes=row_bytes,
        scale_bytes=0, row_format=_FORMATS[row_bytes], model="bench", revision="", source="bench",
    )  # fmt: skip
    table = MemoryTable(
        replace(sb, state=State.COMPLETE, staged_pages=sb.page_count), rows, np.empty((row_count, 0), np.uint8)
    )
    cpus = bench.cpus
    with threads_on(cpus[1:]):
        core = LookupCore(
            [LayerSetup(_LAYER, (MemorySpec(table),), cache_rows=200_000)], lookups_max=tokens * COLUMNS,
            io_threads=bench.settings.readers, backend="posix", spin_us=300_000,
        )  # fmt: skip
    path = GpuStepPath(
        core, cache_rows_max=[200_000], columns=COLUMNS, device=device.torch,
        settings=StepSettings(spin_ms=300, cpus=cpus[:1]),
    )  # fmt: skip
    generator = np.random.default_rng(1)
    ids = torch.zeros((tokens, 1, COLUMNS), dtype=torch.int64, device=device.torch)
    out = torch.empty((tokens * COLUMNS, row_bytes), dtype=torch.uint8, device=device.torch)
    x = bench.compute.activations(tokens)
    counts = bench.compute.counts_for(x, (0.27, 0.9), 1.5)

    def queue(lookups: bool) -> None:
        bench.compute.start()
        if lookups:
            path.issue(ids)
        bench.compute.run(x, counts.first)
        if lookups:
            path.join(0, out)
        bench.compute.run(x, 8 * counts.middle)

    path.arm()
    graphs = {name: device.capture(functools.partial(queue, name == "path")) for name in ("none", "path")}
    times: dict[str, list[float]] = {"none": [], "path": []}
    wrong = 0
    for _ in range(rounds):
        hot, cold = generator.integers(0, 100_000, ids.shape), generator.integers(0, row_count, ids.shape)
        drawn = np.where(generator.random(ids.shape) < 0.6, hot, cold)
        ids.copy_(torch.from_numpy(drawn))
        out.fill_(5)
        for name, graph in graphs.items():
            path.arm()
            device.rest(3_000_000)
            begin = device.instant()
            graph.replay()
            end = device.instant()
            device.reach(end)
            times[name].append(device.elapsed_us(begin, end))
        expected = torch.from_numpy(rows[drawn.reshape(-1)])
        wrong += int((out.cpu() != expected).any(dim=1).sum())
    path.check()
    totals = core.stats()[_LAYER]
    path.close()
    found = {
        "row_bytes": row_bytes, "tokens": tokens, "rows_checked": rounds * tokens * COLUMNS, "mismatched_rows": wrong,
        "hit_rate": round((totals["hits"] + totals["repeats"]) / totals["owned"], 4),
        "added_us": percentiles(np.subtract(times["path"], times["none"])),
    }  # fmt: skip
    log(f"rows of {row_bytes} B: {found}")
    return found
