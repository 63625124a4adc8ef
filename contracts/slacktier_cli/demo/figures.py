# SPDX-License-Identifier: Apache-2.0
"""The report's figures as SVG texts, from the report's JSON. Imports matplotlib when called, not before."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

Report = Mapping[str, Any]

COLORS: Final = ("#3b6ea5", "#c8553d", "#3a8f6b", "#8a5fa8", "#b8862b", "#4f8a94", "#a34a6b", "#6b6f76")
INK: Final = "#1f2933"
GRID: Final = "#d9dee4"
_HIDDEN: Final = "#e6f2ea"
_READ_FLOOR_MS: Final = 0.01  # a logarithmic axis has no zero
STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched and read aloud
    "svg.hashsalt": "slacktier",  # the same report gives the same bytes
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def arm_colors(report: Report) -> dict[str, str]:
    """One colour per arm, the same in every figure."""
    return {name: COLORS[index % len(COLORS)] for index, name in enumerate(report["arms"])}


def layer_ids(report: Report) -> list[str]:
    """Layers in order of use, as the JSON names them."""
    return list(next(iter(report["arms"].values()))["layers"])


def windows_svg(report: Report) -> str:
    """Read time (p50 to p99) of each arm against the window, one panel per layer, on one logarithmic axis."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    layers, arms = layer_ids(report), list(report["arms"])
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.9 + len(layers) * (0.75 + 0.42 * len(arms))), layout="constrained")
        panels = figure.subplots(len(layers), 1, sharex=True, squeeze=False)[:, 0]
        for panel, layer in zip(panels, layers, strict=True):
            _window_panel(panel, report, layer, arms)
        panels[-1].set_xlabel("time from the step's start, ms (dot: median, bar: to p99)")
        return svg_text(figure)


def _window_panel(panel: Any, report: Report, layer: str, arms: Sequence[str]) -> None:
    colors = arm_colors(report)
    window = next(
        (w for arm in arms if (w := report["arms"][arm]["layers"][layer]["window_ms"]) is not None), _READ_FLOOR_MS
    )
    panel.set_xscale("log")
    panel.axvspan(_READ_FLOOR_MS / 2, window, color=_HIDDEN, zorder=0)
    panel.axvline(window, color=INK, linewidth=1.4, zorder=1)
    for row, arm in enumerate(arms):
        read = report["arms"][arm]["layers"][layer]["read_ms"]
        if read["p50"] is None:
            continue
        p50, p99 = max(read["p50"], _READ_FLOOR_MS), max(read["p99"], _READ_FLOOR_MS)
        panel.plot([p50, p99], [row, row], color=colors[arm], linewidth=5, alpha=0.35, solid_capstyle="butt")
        panel.plot([p50], [row], "o", color=colors[arm], markersize=8)
        panel.annotate(
            f"{read['p50']:.2f}", (p50, row), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8.5
        )
    panel.set_yticks(range(len(arms)), arms)
    panel.set_ylim(len(arms) - 0.4, -0.75)
    panel.set_xlim(left=_READ_FLOOR_MS / 2)
    panel.set_title(
        f"layer {layer}: window {window:.2f} ms; reads that end in the shaded part cost nothing",
        loc="left",
        fontsize=10,
    )
    panel.grid(axis="x", color=GRID, linewidth=0.6, zorder=0)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.tick_params(length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)


def tpot_svg(report: Report) -> str:
    """Mean TPOT per arm with the range of block means, and the p95."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    arms, colors = list(report["arms"]), arm_colors(report)
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.9 + 0.5 * len(arms)), layout="constrained")
        panel = figure.subplots()
        for row, arm in enumerate(arms):
            _tpot_row(panel, row, report["arms"][arm], colors[arm])
        panel.set_yticks(range(len(arms)), arms)
        panel.set_ylim(len(arms) - 0.5, -0.5)
        panel.set_xlim(left=0)
        panel.set_xlabel(
            "time per output token at the client, ms (bar: mean, line: range of the blocks' means, diamond: p95)"
        )
        panel.grid(axis="x", color=GRID, linewidth=0.6)
        panel.set_axisbelow(True)
        panel.tick_params(length=0)
        for side in ("top", "right", "left"):
            panel.spines[side].set_visible(False)
        return svg_text(figure)


def _tpot_row(panel: Any, row: int, arm: Report, color: str) -> None:
    tpot = arm["tpot_ms"]
    if tpot is None:
        return
    means = [block["tpot_ms_mean"] for block in arm["blocks"] if block["tpot_ms_mean"] is not None]
    panel.barh(row, tpot["mean"], height=0.55, color=color, alpha=0.85)
    panel.plot([min(means), max(means)], [row, row], color=INK, linewidth=1.6)
    panel.plot([tpot["p95"]], [row], "D", color=INK, markersize=5)
    panel.annotate(
        f"{tpot['mean']:.1f}",
        (0, row),
        textcoords="offset points",
        xytext=(6, 0),
        va="center",
        color="white",
        fontsize=9,
    )


def svg_text(figure: Any) -> str:
    """The figure as an element to put into a page: without XML prologue and without metadata."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True,
        metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
    )  # fmt: skip
    text = buffer.getvalue()
    return text[text.index("<svg") :]
