# SPDX-License-Identifier: Apache-2.0
"""The report's figures as SVG texts, from the report's JSON. Imports matplotlib when called, not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from slacktier_cli.demo.figures import COLORS, GRID, INK, STYLE, svg_text

Document = Mapping[str, Any]


def overhead_svg(report: Document) -> str:
    """Each arm's TPOT against the baseline's: interval, rounds, and the limit where one was given."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(report["overheads"])
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 1.1 + 0.5 * len(names)), layout="constrained")
        panel = figure.subplots()
        for row, name in enumerate(names):
            over = report["overheads"][name]
            panel.plot(over["rounds_pct"], [row, row], color=INK, linewidth=1, alpha=0.6)
            panel.plot(over["interval_pct"], [row, row], color=COLORS[row % len(COLORS)], linewidth=7, alpha=0.35)
            panel.plot([over["tpot_pct"]], [row], "o", color=COLORS[row % len(COLORS)], markersize=8)
        panel.axvline(0, color=INK, linewidth=1.2)
        if report["max_tpot_overhead_pct"] is not None:
            panel.axvline(report["max_tpot_overhead_pct"], color="#b3392a", linewidth=1.2, linestyle="--")
        panel.set_yticks(range(len(names)), names)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.set_xlabel(
            f"mean TPOT against {report['baseline']}, % (dot: mean, bar: 95 % interval, line: range over rounds)"
        )
        _bare(panel)
        return svg_text(figure)


def distribution_svg(report: Document, figure_name: str, label: str) -> str:
    """Share of requests below each value, one line per arm; `tpot_ms` or `ttft_ms`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 3.4), layout="constrained")
        panel = figure.subplots()
        for index, (name, details) in enumerate(report["details"].items()):
            values = np.sort([value for block in details["blocks"] for value in block[figure_name]])
            if values.size:
                shares = np.arange(1, values.size + 1) / values.size
                panel.step(values, 100 * shares, where="post", color=COLORS[index % len(COLORS)], label=name)
        panel.set_xlabel(f"{label}, ms")
        panel.set_ylabel("% of requests")
        panel.set_ylim(0, 100)
        panel.legend(frameon=False)
        _bare(panel)
        return svg_text(figure)


def _bare(panel: Any) -> None:
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
