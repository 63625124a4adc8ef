# SPDX-License-Identifier: Apache-2.0
"""The report's JSON -> one HTML page that needs nothing else: styles and figures are inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from slacktier_cli.demo.page import STYLE
from slacktier_loadtest import plots
from slacktier_loadtest.table import interval, lines, ms, percent, rounds, span

Document = Mapping[str, Any]


def render_page(report: Document) -> str:
    """The whole page."""
    title = f"Load test: {report['scenario']['title']}"
    overheads = f"<figure>{plots.overhead_svg(report)}</figure>" if report["overheads"] else ""
    body = [
        _head(report, title),
        "<h2>What it costs a client</h2>",
        overheads,
        _arms(report),
        _phases(report),
        "<h2>Every request</h2>",
        f"<figure>{plots.distribution_svg(report, 'tpot_ms', 'time per output token')}</figure>",
        f"<figure>{plots.distribution_svg(report, 'ttft_ms', 'time to first token')}</figure>",
        _facts(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(report: Document, title: str) -> str:
    badge = "emulated engine: no GPU was used" if report["engine"] == "emulated" else "running servers"
    faults = "".join(f'<p class="bad"><b>Not good:</b> {escape(fault)}</p>' for fault in report["faults"])
    notes = "".join(f'<p class="warn">{escape(note)}</p>' for note in report["notes"])
    lead = f"{report['workload']}; {report['requests_per_block']:,} requests per block."
    return (
        f'<div class="badges"><span>{badge}</span></div><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(lead)}</p>{faults}{notes}'
    )


def _arms(report: Document) -> str:
    baseline = report["baseline"]
    head = ("arm", f"TPOT against {baseline}", "rounds", "95 % interval", "total time", "total, s", "completed",
            "predicted, ms per step")  # fmt: skip
    compared, timed = [], []
    for arm in report["arms"]:
        over = report["overheads"].get(arm["name"])
        compared.append((
            arm["name"], percent(over and over["tpot_pct"]), rounds(over), interval(over),
            percent(over and over["total_pct"]), f"{arm['total_s']:.1f}", f"{arm['completed']:,}",
            ms(arm["predicted_slowdown_ms"]),
        ))  # fmt: skip
        tpot, ttft = arm["tpot_ms"] or {}, arm["ttft_ms"] or {}
        timed.append((
            arm["name"], ms(tpot.get("mean")), span(tpot.get("min"), tpot.get("max")),
            *(ms(tpot.get(key)) for key in ("p50", "p95", "p99")),
            *(ms(ttft.get(key)) for key in ("mean", "p50", "p95")),
        ))  # fmt: skip
    times = ("arm", "TPOT, ms", "of blocks", "p50", "p95", "p99", "TTFT, ms", "p50", "p95")
    return table(head, compared) + "<p></p>" + table(times, timed)


def _phases(report: Document) -> str:
    names = [arm["name"] for arm in report["arms"]]
    phases = report["details"][names[0]]["phases"] if names else {}
    if not phases:
        return ""
    rows = []
    for phase in phases:
        cells = [report["details"][name]["phases"].get(phase, {}).get("ttft_ms") for name in names]
        rows.append((phase, *(ms(cell["p50"]) if cell else "-" for cell in cells)))
    return "<h2>Median TTFT by phase, ms</h2>" + table(("phase", *names), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """An HTML table of plain texts."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _facts(report: Document) -> str:
    machine = report["machine"]
    pairs = {
        "Machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['kernel']}",
        "Disk": f"{machine['disk']}, {machine['filesystem']}",
        "Seed": str(report["seed"]),
        "SlackTier": report["slacktier"],
    }
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs.items())
    said = "".join(f"<li>{escape(line)}</li>" for line in lines(report))
    return f"<h2>What was run</h2><ul>{said}</ul><dl>{listed}</dl>"
