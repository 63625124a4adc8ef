# SPDX-License-Identifier: Apache-2.0
"""The report on a terminal: a table like the paper's Table 6, and what is not good."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

Document = Mapping[str, Any]


def print_document(report: Document, console: Console) -> None:
    console.print(_comparison(report))
    console.print()
    console.print(_times(report))
    if any(details["phases"] for details in report["details"].values()):
        console.print(_phases(report))
    for line in lines(report):
        console.print(Text(line))
    for note in report["notes"]:
        console.print(Text(note, style="yellow"))
    for fault in report["faults"]:
        console.print(Text(f"not good: {fault}", style="bold red"))


def _table(title: str) -> Table:
    return Table(title=escape(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)


def _comparison(report: Document) -> Table:
    """As the paper's Table 6, with the window rule's word in the last column."""
    table = _table(f"Against {report['baseline']}: mean TPOT [min, max of rounds], time of a block")
    table.add_column("arm", overflow="fold")
    for head in ("TPOT", "[min, max]", "95 % interval", "total", "total\ns", "done", "predicted\nms/step"):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for arm in report["arms"]:
        over = report["overheads"].get(arm["name"])
        table.add_row(
            arm["name"], percent(over and over["tpot_pct"]), rounds(over), interval(over),
            percent(over and over["total_pct"]), f"{arm['total_s']:.1f}", str(arm["completed"]),
            ms(arm["predicted_slowdown_ms"]),
        )  # fmt: skip
    return table


def _times(report: Document) -> Table:
    table = _table("TPOT and TTFT, ms; [min, max] of the blocks' means")
    table.add_column("arm", overflow="fold")
    for head in ("TPOT", "[min, max]", "p50", "p95", "p99", "TTFT", "p50", "p95"):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for arm in report["arms"]:
        tpot, ttft = arm["tpot_ms"] or {}, arm["ttft_ms"] or {}
        table.add_row(
            arm["name"], ms(tpot.get("mean")), span(tpot.get("min"), tpot.get("max")), ms(tpot.get("p50")),
            ms(tpot.get("p95")), ms(tpot.get("p99")), ms(ttft.get("mean")), ms(ttft.get("p50")), ms(ttft.get("p95")),
        )  # fmt: skip
    return table


def _phases(report: Document) -> Table:
    table = _table("TTFT by phase; median, and mean in brackets, ms")
    table.add_column("phase", overflow="fold")
    names = [arm["name"] for arm in report["arms"]]
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for phase in report["details"][names[0]]["phases"]:
        cells = [report["details"][name]["phases"].get(phase, {}).get("ttft_ms") for name in names]
        table.add_row(phase, *(f"{ms(cell['p50'])} ({ms(cell['mean'])})" if cell else "-" for cell in cells))
    return table


def lines(report: Document) -> list[str]:
    """What the table leaves out, a sentence each."""
    generator, found = report["generator"], []
    if generator["lag_ms_p99"] is not None:
        found.append(
            f"Generator: lag p99 {generator['lag_ms_p99']:.1f} ms (most of all blocks; {generator['lag_ms_allowed']:g} "
            f"allowed), {generator['cpu']:.0%} of a core, {generator['processes']} processes."
        )
    for name, details in report["details"].items():
        if details["without_tpot"]:
            listed = ", ".join(f"{count} {reason}" for reason, count in details["without_tpot"].items())
            found.append(f"{name}: requests without a TPOT: {listed}.")
        if details["good_requests_per_s"] is not None:
            found.append(
                f"{name}: goodput {details['good_requests_per_s']:.2f} requests/s within the SLO, "
                f"{details['good_share_of_sent']:.0%} of those sent."
            )
    return found


def ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def span(low: float | None, high: float | None) -> str:
    return "-" if low is None or high is None else f"[{ms(low)}, {ms(high)}]"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1f} %"


def rounds(over: Document | None) -> str:
    return "-" if over is None else f"[{over['rounds_pct'][0]:+.1f}, {over['rounds_pct'][1]:+.1f}]"


def interval(over: Document | None) -> str:
    return "-" if over is None else f"[{over['interval_pct'][0]:+.1f}, {over['interval_pct'][1]:+.1f}]"
