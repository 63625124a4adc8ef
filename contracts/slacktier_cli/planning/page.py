# SPDX-License-Identifier: Apache-2.0
"""A finished plan as one HTML page: no scripts, nothing loaded from elsewhere, so it can be mailed or attached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from slacktier import __version__
from slacktier.errors import SlackTierError
from slacktier.window import Decision
from slacktier.window_text import ms
from slacktier_cli.planning.figure import PANELS_MAX, figure_svg
from slacktier_cli.planning.report import Report, memory_sentence
from slacktier_cli.planning.tables import CASE_HEADS, LAYER_HEADS, case_rows, layer_rows

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd; vertical-align: top; }
th { font-weight: 600; } .number { text-align: right; white-space: nowrap; }
.verdict { padding: .6rem .8rem; border-left: 4px solid #009e73; background: #eef7f2; }
.verdict.no { border-color: #b00020; background: #fbeef0; }
figure { margin: 1rem 0; overflow-x: auto; } figure svg { max-width: 100%; height: auto; }
figcaption, .quiet { color: #555; font-size: .9rem; }
"""
_CAPTION: Final = (
    "Shaded: the layer's window, the time until it needs its rows. Bars: reads on the device chosen, paler on the "
    "others with the same cache; red: after the window, so the step waits."
)
_CAPTION_MANY: Final = "Shaded: each layer's window. Points above the line come late, so the step waits for them."
_NUMBERS: Final = frozenset(LAYER_HEADS[3:]) | frozenset(CASE_HEADS[2:5])


def write_page(path: Path, report: Report) -> None:
    """Write the page; raises SlackTierError if the file cannot be written."""
    text = page(report)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise SlackTierError(f"{path}: {exc.strerror}") from exc


def page(report: Report) -> str:
    """The whole page as text."""
    plan, decision = report.plan, report.decision
    title = f"{plan.model}: where its tables live"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="quiet">{escape(_circumstances(report))}</p>',
        f"<p>{escape(plan.about)}</p>" if plan.about else "",
        f'<p class="verdict{"" if decision.fits else " no"}">{"Fits" if decision.fits else "Does not fit"}: '
        f"{escape(decision.summary)}.</p>",
        _list("Each of these alone would make it fit", decision.changes),
    ]
    if decision.layers:
        parts += [_figure(report), _table("Placement", LAYER_HEADS, layer_rows(decision))]
        parts += [_why(decision)]
        memory = memory_sentence(report)
        parts += [f"<h2>Memory</h2><p>{escape(memory[:1].upper() + memory[1:])}.</p>"]
    parts.append(_list("Mind", (*decision.warnings, *report.notes)))
    if report.cases:
        notes = dict.fromkeys(note for case in report.cases for note in case.notes)
        parts += [_table("What if", CASE_HEADS, case_rows(report.cases)), _list("What-if assumes", tuple(notes))]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _circumstances(report: Report) -> str:
    plan = report.plan
    ranks = "1 rank" if plan.ranks == 1 else f"{plan.ranks} ranks"
    return (
        f"{plan.sessions} sessions, {ranks}, a step of {ms(report.problem.step_ms)}, at most {plan.slo_pct:g} % "
        f"slower. From {Path(report.source).name}, slacktier {__version__}."
    )


def _figure(report: Report) -> str:
    caption = _CAPTION if len(report.decision.layers) <= PANELS_MAX else _CAPTION_MANY
    return f"<figure>\n{figure_svg(report)}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def cell(tag: str, head: str, text: str) -> str:
        kind = ' class="number"' if head in _NUMBERS else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    lines = ["".join(cell("th", head, head) for head in heads)]
    lines += ["".join(cell("td", head, text) for head, text in zip(heads, row, strict=True)) for row in rows]
    return f"<h2>{escape(title)}</h2>\n<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def _why(decision: Decision) -> str:
    """A sentence per layer; folded where there are many."""
    sentences = [layer.sentence for layer in decision.layers]
    if len(sentences) <= PANELS_MAX:
        return _list("Why", sentences)
    items = "".join(f"<li>{escape(line)}</li>" for line in sentences)
    summary = f"<summary>{len(sentences)} sentences, one for each layer</summary>"
    return f"<h2>Why</h2>\n<details>{summary}<ul>{items}</ul></details>"


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<h2>{escape(title)}</h2>\n<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"
