# SPDX-License-Identifier: Apache-2.0
"""A prefill chunk's lookups, eager and with nothing to hide behind: ours on a source against the stock gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from slacktier_engine.decode_bench.arms import CHUNK_TOKENS, PathArm, PathSetup, StockArm
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS
from slacktier_engine.decode_bench.inputs import chunk_ids
from slacktier_engine.decode_bench.measure import percentiles
from slacktier_engine.decode_bench.run import DecodeBench, log
from slacktier_engine.decode_bench.workload import TokenStream


def measure(bench: DecodeBench, stream: TokenStream, source: str, *, chunks: int = 6) -> dict[str, Any]:
    """Times of both layers' rows of a chunk in us; the chunks follow each other through a trace."""
    readers, rows = bench.settings.readers, bench.settings.cache_rows // len(LOOKUP_LAYERS)
    setup = PathSetup(128, (rows, rows), readers=readers, cpus=bench.cpus, backend="auto")
    arm = PathArm(source, bench.memory(source), setup, bench.device)
    arm.use(bench.source(source))
    row_count = bench.row_count(source)
    everything = (0, bench.table.row_count)
    out = [o.clone() for o in bench.scratch]
    stocks = [
        StockArm(name, bench.stock, bench.table, everything, sort, out)
        for name, sort in (("stock", False), ("sorted", True))
    ]
    times: dict[str, list[float]] = {"stock": [], "sorted": [], source: []}
    wrong = 0
    for chunk in range(chunks + 1):
        at = np.arange(chunk * CHUNK_TOKENS, (chunk + 1) * CHUNK_TOKENS)
        ids = chunk_ids(bench.hasher, stream, at, row_count).to(bench.device.torch)
        for name in list(times)[chunk % 3 :] + list(times)[: chunk % 3]:
            arm.arm_path()
            bench.device.synchronize()
            begin = bench.device.instant()
            if name == source:
                arm.extend(ids, bench.scratch)
            else:
                for index in range(len(LOOKUP_LAYERS)):
                    stocks[name == "sorted"].layer(index, ids)
            end = bench.device.instant()
            bench.device.reach(end)
            if chunk:  # the first compiles
                times[name].append(bench.device.elapsed_us(begin, end))
        wrong += bench.checker.compare(ids, bench.scratch, tp=1)
    arm.path.check()
    arm.close()
    found = {"source": source, "tokens": CHUNK_TOKENS, "us": percentiles(times[source])}
    found |= {f"{name}_us": percentiles(times[name]) for name in ("stock", "sorted")}
    found["mismatched_rows"] = wrong
    log(f"extend {found}")
    return found
