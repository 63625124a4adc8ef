# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal: one table, the checks and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Report = Mapping[str, Any]


def print_report(report: Report, console: Console) -> None:
    """What a run found: figures per arm and layer, rows checked, the decision and what is not good about it."""
    console.print(_results(report))
    for line in summary_lines(report):
        console.print(Text(line))
    for warning in report["warnings"]:
        console.print(Text(warning, style="yellow"))
    console.print(Text(f"Decision: {report['decision']}", style="bold"))
    for fault in report["faults"]:
        console.print(Text(f"not good: {fault}", style="bold red"))


def _results(report: Report) -> Table:
    title = "Emulated engine, scaled tables; times in ms" if _is_scaled(report) else "Emulated engine; times in ms"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for name in ("TPOT", "p95", "vs dram", "layer", "window", "read\np50", "read\np99", "stall", "hits"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, arm in report["arms"].items():
        tpot = arm["tpot_ms"] or {}
        lead = [name, _ms(tpot.get("mean")), _ms(tpot.get("p95")), _percent(arm["tpot_vs_dram"]["percent"])]
        for layer_id, layer in arm["layers"].items():
            table.add_row(
                *lead, layer_id, _ms(layer["window_ms"]), _ms(layer["read_ms"]["p50"]), _ms(layer["read_ms"]["p99"]),
                _ms(layer["stall_ms"]), _rate(layer["hit_rate"]),
            )  # fmt: skip
            lead = ["", "", "", ""]
    return table


def summary_lines(report: Report) -> list[str]:
    """Rows checked, the tables' sizes and the check against CLOCK, a sentence each."""
    lines = [
        f"Rows checked against the pattern: {report['rows_checked']:,} "
        f"({report['rows_checked_serving']:,} while serving), mismatches: {report['mismatched_rows']:,}, "
        f"I/O interface: {report['backend']}.",
        "Tables: "
        + "; ".join(
            f"layer {table['layer_id']} has {table['rows']:,} rows"
            + (f", scaled from {table['full_rows']:,}" if table["scaled"] else "")
            for table in report["tables"]
        )
        + (". Hit rates are the scaled tables'." if _is_scaled(report) else "."),
    ]
    check = report["clock_check"]
    if check is not None:
        rates = "; ".join(
            f"layer {layer_id} {_rate(layer['hit_rate'])} against {_rate(layer['clock_hit_rate'])}"
            for layer_id, layer in check["layers"].items()
        )
        lines.append(f"Row cache against a plain CLOCK on the same lookups: {rates}.")
    return lines


def _is_scaled(report: Report) -> bool:
    return any(table["scaled"] for table in report["tables"])


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f}%"
