# SPDX-License-Identifier: Apache-2.0
"""Blocks with known figures, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from slacktier_cli.demo.arms import Arm, parse_arms
from slacktier_cli.demo.clock_check import ClockCheck
from slacktier_cli.demo.document import Run, SweepResult, TableFacts
from slacktier_cli.demo.placement import place_tables
from slacktier_cli.demo.results import ArmFigures, BlockResult, arm_figures
from slacktier_cli.demo.server_report import ServerReport, parse_report
from slacktier_cli.demo.traffic import Served, Traffic
from slacktier_cli.machine import Machine
from slacktier_cli.replay.metrics import Outcome, StreamRecord

MS = 1_000_000
WINDOWS = {1: 0.1, 14: 3.5}
FULL_ROWS = {1: 384_006_168, 14: 384_016_682}
# a_us, b_us per own and earlier page, and pages per layer and step, by arm
READS = {"dram": (10.0, 0.5, 48.0), "nvme": (150.0, 12.0, 48.0), "nvme-split": (150.0, 12.0, 12.0)}


def record(
    tpot_ms: float, *, tokens: int = 11, sent_ms: float = 0.0, outcome: Outcome = Outcome.COMPLETED
) -> StreamRecord:
    """A request whose first token came 50 ms after it was sent."""
    first = int((sent_ms + 50) * MS)
    chunks = [first + int(index * tpot_ms * MS) for index in range(tokens)]
    return StreamRecord(
        sent_ns=int(sent_ms * MS), chunk_ns=chunks, completion_tokens=tokens, is_done=True, outcome=outcome,
        error="HTTP 500: tier gone" if outcome is Outcome.FAILED else "",
    )  # fmt: skip


def traffic(tpots_ms: list[float], *, cut: int = 0) -> Traffic:
    """One user: a slow first request, then one per TPOT."""
    return Traffic([Served(0, index, record(tpot)) for index, tpot in enumerate([500.0, *tpots_ms])], cut, 10.0, 0.05)


def layer_report(layer_id: int, arm: str, queued_layers: int) -> dict[str, Any]:
    a_us, b_us, pages = READS[arm]
    read_ms = (a_us + b_us * pages * queued_layers) / 1000
    stall = max(0.0, read_ms - WINDOWS[layer_id])
    lookups = 4800
    hits = int(lookups * (1 - pages / 48))
    return {
        "layer_id": layer_id,
        "tier": "dram" if arm == "dram" else "nvme",
        "window_ms": WINDOWS[layer_id],
        "read_ms": {"mean": read_ms, "p50": read_ms, "p99": 2 * read_ms},
        "stall_ms": {"mean": stall, "p50": stall, "p99": 2 * stall},
        "lookups": lookups, "hits": hits, "repeats": 0, "misses": lookups - hits,
        "hit_rate": hits / lookups, "pages": int(100 * pages), "pages_per_step": pages,
    }  # fmt: skip


def server_report(arm: str, *, mismatched: int = 0) -> ServerReport:
    layers = [layer_report(1, arm, 1), layer_report(14, arm, 2)]
    step = 11.0 + layers[0]["stall_ms"]["mean"]
    return parse_report(
        {
            "engine": "emulated", "seconds": 10.0, "first_step": 100, "end_step": 200, "rows_checked": 9600,
            "mismatched_rows": mismatched, "failed_steps": 0, "steps": 100, "tokens": 800,
            "step_ms": {"mean": step, "p50": step, "p95": step, "p99": step}, "layers": layers,
            "prefill": {"steps": 3, "tokens": 500, "layers": layers}, "something_new": 1,
        }
    )  # fmt: skip


def block(arm: Arm, round_index: int, tpots_ms: list[float], *, cut: int = 1, mismatched: int = 0) -> BlockResult:
    return BlockResult(round_index, arm, traffic(tpots_ms, cut=cut), server_report(arm.name, mismatched=mismatched))


def figures(*, mismatched: int = 0) -> tuple[ArmFigures, ...]:
    """Three arms, two rounds: DRAM at 12 ms per token, the disk at 15, the disk with a cache at 12.6."""
    arms = parse_arms(("dram", "nvme", "nvme-split"))
    tpots = {"dram": [12.0, 12.0, 12.0], "nvme": [15.0, 15.0], "nvme-split": [12.6, 12.6]}
    blocks = [block(arm, r, tpots[arm.name], mismatched=mismatched) for r in range(2) for arm in arms]
    return arm_figures(arms, blocks, cache_rows=50_000)


def run(*, mismatched: int = 0, is_scaled: bool = True) -> Run:
    """A whole finished run of figures()."""
    found = figures(mismatched=mismatched)
    placement = place_tables(
        found, row_counts=list(FULL_ROWS.values()), row_bytes=264, ranks=4, cache_rows=50_000, slo_pct=1.0
    )
    return Run(
        tables=tuple(
            TableFacts(layer, 2_000_000 if is_scaled else rows, rows, 546_000_000, False)
            for layer, rows in FULL_ROWS.items()
        ),
        figures=found, placement=placement, clock_arm="nvme-split",
        clock={
            1: ClockCheck(4800, 25_000, 0.75, 0.752, 0.8, 0.8),
            14: ClockCheck(4800, 25_000, 0.74, 0.745, None, None),
        },
        sweep=SweepResult(990_400, 0, 4.0), backend="uring", backend_reason="",
        machine=Machine("Test CPU <1>", 2, 8 << 30, "Linux 6.1", "3.11.2", "ext4", "vda (not rotational)"),
        workload={"name": "sessions about <&> things", "sessions": 48, "tokens": 80_000, "limits": "cut to 64"},
        settings={
            "sessions": 8, "blocks": 2, "block_seconds": 10.0, "tp": 4, "seed": 1, "profile": "v41-h200",
            "load_average": 0.5,
            "disk": "7,000 random 4 KiB reads per second before the run",
        },
        timings={"blocks": 60.0},
    )  # fmt: skip
