# SPDX-License-Identifier: Apache-2.0
"""The report's JSON -> one HTML page that needs nothing else: styles and figures are inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from slacktier_cli.demo import figures

Report = Mapping[str, Any]

STYLE: Final = """
:root { --ink: #1f2933; --soft: #5b6773; --line: #d9dee4; --good: #2d7a55; --bad: #b3392a; --paper: #fbfbf9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 940px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 6px 0 10px; }
h2 { font-size: 18px; margin: 40px 0 10px; border-top: 1px solid var(--line); padding-top: 18px; }
p, li { max-width: 80ch; }
.badges span { display: inline-block; font-size: 12.5px; font-weight: 600; padding: 2px 10px; border-radius: 99px;
  margin: 0 6px 6px 0; background: #fbe9d4; color: #7a4b10; }
.lead { font-size: 17px; margin: 0 0 18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 12px; margin: 18px 0; }
.tile { background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; }
.tile b { display: block; font-size: 21px; }
.tile small, .soft { color: var(--soft); }
.warn { color: #7a4b10; } .good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid var(--line); font-size: 14px; }
th, td { padding: 6px 10px; text-align: right; border-bottom: 1px solid var(--line); }
th { font-size: 12.5px; color: var(--soft); font-weight: 600; }
th:first-child, td:first-child, td.text, th.text { text-align: left; }
tr.first td { border-top: 2px solid var(--line); }
figure { margin: 0; background: #fff; border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figure svg { width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 3px 18px; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; }
"""
_NONE: Final = "–"


def render_page(report: Report) -> str:
    """The whole page."""
    body = [
        _head(report),
        _tiles(report),
        "<h2>Where the rows must be, and when they are there</h2>",
        f"<figure>{figures.windows_svg(report)}</figure>",
        _decision(report),
        "<h2>What it costs per output token</h2>",
        f"<figure>{figures.tpot_svg(report)}</figure>",
        _arms_table(report),
        _layers_table(report),
        _prediction_table(report),
        _clock_table(report),
        _facts(report),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>SlackTier demo</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(report: Report) -> str:
    badges = ["emulated engine: no GPU was used"]
    if any(table["scaled"] for table in report["tables"]):
        badges.append("scaled tables")
    if any(arm["emulated_device"] for arm in report["arms"].values()):
        badges.append("some devices emulated")
    marks = "".join(f"<span>{escape(badge)}</span>" for badge in badges)
    faults = "".join(f'<p class="bad"><b>Not good:</b> {escape(fault)}</p>' for fault in report["faults"])
    faults += "".join(f'<p class="warn">{escape(warning)}</p>' for warning in report["warnings"])
    headline = report["decision"].split(". ", 1)[0].rstrip(".")
    return (
        f'<div class="badges">{marks}</div><h1>{escape(headline)}</h1>'
        f'<p class="lead">{escape(workload_sentence(report))}</p>{faults}'
    )


def workload_sentence(report: Report) -> str:
    """What was replayed, how and how long."""
    workload, settings = report["workload"], report["settings"]
    return (
        f"{settings['sessions']} users replayed {workload['name']} over HTTP in {_rounds(settings['blocks'])} of "
        f"{len(report['arms'])} placements, {settings['block_seconds']:g} s each, in shuffled order."
    )


def _rounds(count: int) -> str:
    return f"{count} round" if count == 1 else f"{count} rounds"


def _tiles(report: Report) -> str:
    mismatched = report["mismatched_rows"]
    tiles = [
        (f"{report['rows_checked']:,}", "rows checked against the pattern", ""),
        (f"{mismatched:,}", "of them wrong", "bad" if mismatched else "good"),
        *(
            (_percent(arm["tpot_vs_dram"]["percent"]), f"TPOT of {name} against dram", "")
            for name, arm in _others(report)
        ),
        (report["backend"], "I/O interface", ""),
    ]
    return '<div class="tiles">' + "".join(
        f'<div class="tile"><b class="{kind}">{escape(value)}</b><small>{escape(text)}</small></div>'
        for value, text, kind in tiles
    ) + "</div>"  # fmt: skip


def _others(report: Report) -> Iterable[tuple[str, Report]]:
    return ((name, arm) for name, arm in report["arms"].items() if name != "dram")


def _decision(report: Report) -> str:
    placement = report["placement"]
    listed = "".join(f"<li>{escape(layer['sentence'])}.</li>" for layer in placement["layers"])
    if placement["measured"]:
        listed += f"<li>{escape(placement['measured'])}.</li>"
    listed += "".join(
        f"<li>It would be within {placement['slo_pct']:g} % with {escape(change)}.</li>"
        for change in placement["changes"]
    )
    notes = "".join(f'<p class="soft">{escape(line)}.</p>' for line in placement["warnings"])
    whole = escape(report["decision"].split(". ", 1)[0])
    return f"<h2>The decision, to be checked</h2><p>{whole}.</p><ul>{listed}</ul>{notes}"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    after = f'<p class="soft">{escape(note)}</p>' if note else ""
    return f"<h2>{escape(title)}</h2><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>{after}"


def _arms_table(report: Report) -> str:
    rows = []
    for name, arm in report["arms"].items():
        tpot, ttft, requests = arm["tpot_ms"] or {}, arm["ttft_ms"] or {}, arm["requests"]
        rows.append((
            name, _ms(tpot.get("mean")), _ms(tpot.get("p95")), _percent(arm["tpot_vs_dram"]["percent"]),
            _ms(ttft.get("p50")), _ms(arm["server_step_ms"]["p50"]), f"{requests['completed']:,}",
            f"{requests['cut']:,}",
        ))  # fmt: skip
    head = ("arm", "TPOT mean, ms", "TPOT p95", "against dram", "TTFT median", "server step p50", "completed", "cut")
    note = "Against dram: mean TPOT over the requests that both arms finished in the same round."
    return _table("Arms", head, rows, note)


def _layers_table(report: Report) -> str:
    rows = [
        (
            f"{name}, layer {layer_id}", layer["tier"], f"{layer['cache_rows']:,}", _ms(layer["window_ms"]),
            _ms(layer["read_ms"]["p50"]), _ms(layer["read_ms"]["p99"]), _ms(layer["stall_ms"]),
            _rate(layer["hit_rate"]), _number(layer["pages_per_step"]),
        )
        for name, arm in report["arms"].items()
        for layer_id, layer in arm["layers"].items()
    ]  # fmt: skip
    head = (
        "arm, layer",
        "tier",
        "cache rows",
        "window, ms",
        "read p50",
        "read p99",
        "exposed stall",
        "hit rate",
        "pages/step",
    )
    note = "Decode steps; stall is the mean per step. Hit rates are the scaled tables'." if _is_scaled(report) else ""
    return _table("Layers", head, rows, note)


def _prediction_table(report: Report) -> str:
    predictions = report["placement"]["predictions"]
    if not predictions:
        return ""
    rows = [(p["arm"], f"{p['predicted_ms']:+.2f}", f"{p['measured_ms']:+.2f}") for p in predictions]
    note = "The read models were fitted to these same arms, so this tests the window rule, not the fit on new data."
    return _table(
        "The window rule against the server's steps", ("arm", "predicted, ms per step", "measured"), rows, note
    )


def _clock_table(report: Report) -> str:
    check = report["clock_check"]
    if check is None:
        return ""
    rows = [
        (
            f"layer {layer_id}", f"{layer['lookups']:,}", f"{layer['cache_rows']:,}", _rate(layer["hit_rate"]),
            _rate(layer["clock_hit_rate"]), f"{layer['difference_points']:+.2f} points",
        )
        for layer_id, layer in check["layers"].items()
    ]  # fmt: skip
    head = (f"one block of {check['arm']}", "lookups", "cache rows", "hit rate", "plain CLOCK", "difference")
    note = "From an empty cache, prefill and decode together; a row asked for again in the same step is a hit."
    return _table("The row cache against a plain CLOCK simulation of the same lookups", head, rows, note)


def _facts(report: Report) -> str:
    machine, workload = report["machine"], report["workload"]
    tables = "; ".join(
        f"layer {table['layer_id']}: {table['rows']:,} rows"
        + (f" (scaled from {table['full_rows']:,})" if table["scaled"] else "")
        for table in report["tables"]
    )
    memory = f"{machine['memory_bytes'] / 2**30:.1f} GiB"
    pairs = {
        "Machine": f"{machine['cpu']}, {machine['cores']} cores, {memory}, {machine['kernel']}",
        "Disk": f"{machine['disk']}, {machine['filesystem']}, {report['settings']['disk']}",
        "Tables": tables,
        "Workload": f"{workload['sessions']:,} sessions, {workload['tokens']:,} tokens; {workload['limits']}",
        "I/O": report["backend"] + (f" ({report['backend_reason']})" if report["backend_reason"] else ""),
        "Seed": str(report["settings"]["seed"]),
        "SlackTier": report["slacktier"],
    }
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in pairs.items())
    notes = "".join(f"<li>{escape(note)}</li>" for note in report["notes"])
    return f"<h2>What was run</h2><dl>{listed}</dl><h2>Before you draw conclusions</h2><ul>{notes}</ul>"


def _is_scaled(report: Report) -> bool:
    return any(table["scaled"] for table in report["tables"])


def _ms(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.2f}"


def _rate(value: float | None) -> str:
    return _NONE if value is None else f"{100 * value:.2f} %"


def _number(value: float | None) -> str:
    return _NONE if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return _NONE if value is None else f"{value:+.1f} %"
