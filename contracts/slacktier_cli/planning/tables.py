# SPDX-License-Identifier: Apache-2.0
"""A finished plan, and the paper's figures, as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slacktier.window import GIB, Decision
from slacktier.window_text import ms
from slacktier_cli.planning.memory import host_memory
from slacktier_cli.planning.report import Report, memory_sentence
from slacktier_cli.planning.what_if import Case

LAYER_HEADS = ("layer", "device", "tier", "pages", "read ms", "window", "margin", "stall", "cache rows", "host rows")
CASE_HEADS = ("case", "fits", "slowdown", "% of step", "freed GiB", "placement")
_LAYERS_IN_FULL = 8  # with more layers equal neighbours share a row


def show_plan(console: Console, report: Report) -> None:
    """The decision, a sentence for every layer, what the numbers do not cover, memory, what-if cases."""
    decision, problem = report.decision, report.problem
    console.print(f"{report.plan.model}, {report.plan.sessions} sessions, step {ms(problem.step_ms)}", style="bold")
    if decision.layers:
        console.print(layer_table(report))
    verdict = "fits" if decision.fits else "does not fit"
    proof = "" if decision.proven else " (best found; with this many layers not every placement was tried)"
    console.print(
        Text(f"{verdict}: {decision.summary}{proof}", style="green" if decision.fits else "red"), soft_wrap=True
    )
    if len(decision.layers) <= _LAYERS_IN_FULL:
        for layer in decision.layers:
            console.print(Text(f"  {layer.sentence}"), soft_wrap=True)
    _lines(console, "what would make it fit, each alone", decision.changes)
    _lines(console, "mind", (*decision.warnings, *report.notes))
    if decision.cache_rows_spare:
        console.print(
            f"GPU cache: {decision.cache_rows_spare:,} of {problem.cache_rows:,} rows per rank are not needed"
        )
    if decision.layers:
        console.print(Text(memory_sentence(report)), soft_wrap=True)
    if report.cases:
        console.print(case_table(report.cases))
        _lines(console, "what-if assumes", tuple(dict.fromkeys(note for case in report.cases for note in case.notes)))


def _lines(console: Console, title: str, lines: tuple[str, ...]) -> None:
    if lines:
        console.print(f"{title}:")
        for line in lines:
            console.print(Text(f"  - {line}"), soft_wrap=True)


def layer_table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in LAYER_HEADS:
        table.add_column(column, justify="left" if column in ("layer", "device", "tier") else "right", no_wrap=True)
    for row in layer_rows(report.decision):
        table.add_row(*row)
    return table


def layer_rows(decision: Decision) -> list[tuple[str, ...]]:
    """One row per layer; with many layers one per run of neighbours on the same device, its ends shown."""
    rows: list[tuple[str, ...]] = []
    layers = list(decision.layers)
    while layers:
        run = [layers.pop(0)]
        while len(decision.layers) > _LAYERS_IN_FULL and layers and layers[0].device == run[0].device:
            run.append(layers.pop(0))
        first, last = run[0], run[-1]
        rows.append(
            (
                f"{first.layer_id}" if first is last else f"{first.layer_id}-{last.layer_id}",
                first.device,
                first.tier.value,
                _ends(f"{first.pages:,.0f}", f"{last.pages:,.0f}"),
                _ends(f"{first.read_ms:.2f}", f"{last.read_ms:.2f}"),
                _ends(f"{first.window_ms:.2f}", f"{last.window_ms:.2f}"),
                f"{min(layer.margin_ms for layer in run):.2f}",
                f"{sum(layer.stall_ms for layer in run):.2f}",
                f"{sum(layer.cache_rows for layer in run):,}",
                f"{sum(layer.host_cache_rows for layer in run):,}",
            )
        )
    return rows


def _ends(first: str, last: str) -> str:
    return first if first == last else f"{first}..{last}"


def case_table(cases: tuple[Case, ...]) -> Table:
    table = Table(box=None, pad_edge=False, title="what if", title_justify="left")
    for column in CASE_HEADS:
        table.add_column(column, justify="right" if column in CASE_HEADS[2:5] else "left")
    for row in case_rows(cases):
        table.add_row(*row)
    return table


def case_rows(cases: tuple[Case, ...]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for case in cases:
        decision = case.decision
        if not decision.layers:
            rows.append((case.name, "no", "", "", "", "; ".join(decision.changes)))
            continue
        freed = host_memory(case.problem, decision).freed_bytes / GIB
        rows.append(
            (
                case.name,
                "yes" if decision.fits else "no",
                ms(decision.slowdown_ms),
                f"{decision.slowdown_pct:.1f}",
                f"{freed:,.1f}",
                placement(decision),
            )
        )
    return rows


def placement(decision: Decision) -> str:
    """L1 on host, L14 on nvme0 with 250,000 rows."""
    parts: list[str] = []
    for layer, device, _, _, _, _, _, _, rows, host_rows in layer_rows(decision):
        cached = [f"{count} {kind}" for count, kind in ((rows, "rows"), (host_rows, "host rows")) if count != "0"]
        parts.append(f"L{layer} on {device}{' with ' + ' and '.join(cached) if cached else ''}")
    return ", ".join(parts)


def show_paper(console: Console, report: dict[str, Any]) -> None:
    """The paper's figures beside ours."""
    console.print(_table_3(report["table_3"]))
    for name, title in (("table_2", "Table 2, NVMe rows"), ("table_9", "Table 9, NVMe rows")):
        console.print(_configurations(f"{title}: RMSE {report[name]['rmse_ms']:.3f} ms", report[name]["rows"]))
    console.print(f"NVMe rows of both tables: RMSE {report['nvme_rmse_ms']:.3f} ms")
    console.print(_figures(report["figures"]))
    console.print("Conclusions as decisions (SLO 1 %, unless a case needs another):", style="bold")
    for case in report["conclusions"]:
        console.print(Text(f"  paper: {case['paper']}"))
        for sentence in case["sentences"]:
            console.print(Text(f"    ours: {sentence}"), soft_wrap=True)
    _lines(console, "Assumed", tuple(report["assumptions"]))


def _table_3(table_3: dict[str, Any]) -> Table:
    rmse = table_3["rmse_ms"]
    table = Table(box=None, pad_edge=False, title=f"Table 3, slowdown in ms: RMSE {rmse:.2f} ms", title_justify="left")
    for column in ("L1 delay", "L14 delay", "measured", "paper's rule", "ours", "sum of excesses"):
        table.add_column(column, justify="right")
    columns = ("measured_ms", "paper_ms", "slowdown_ms", "sum_of_excesses_ms")
    for delays, *values in zip(table_3["delays_ms"], *(table_3[column] for column in columns), strict=True):
        table.add_row(*(f"{value:g}" for value in delays), *(f"{value:.2f}" for value in values))
    return table


def _configurations(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    table.add_column("configuration")
    table.add_column("workload")
    for column in ("measured ms", "ours ms", "ours - measured"):
        table.add_column(column, justify="right")
    for row in rows:
        ours, measured = row["slowdown_ms"], row["measured_ms"]
        table.add_row(
            row["configuration"], row["workload"], f"{measured:.2f}", f"{ours:.2f}", f"{ours - measured:+.2f}"
        )
    return table


def _figures(figures: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title="Other figures", title_justify="left")
    table.add_column("figure")
    for column in ("paper", "ours"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    for row in figures:
        table.add_row(row["figure"], f"{row['paper']:g}", f"{row['ours']:.2f}", row["unit"])
    return table
