# SPDX-License-Identifier: Apache-2.0
"""The figure of a plan: each layer's window against the read times that its devices would need."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier.window import LayerDecision, Place, predict
from slacktier_cli.planning.report import Report

PANELS_MAX: Final = 8  # with more layers one chart over depth shows more than a panel each
# Distinct for colour-blind eyes (Okabe and Ito), and dark enough for a bar on white.
TIER_COLOURS: Final = {
    Tier.DRAM: "#0072B2",
    Tier.NVME: "#D55E00",
    Tier.RDMA: "#009E73",
    Tier.TCP: "#CC79A7",
    Tier.EMULATED: "#7F7F7F",
}
_LATE: Final = "#B00020"
_WINDOW: Final = "#DDEBDD"
_INK: Final = "#222222"


@dataclass(frozen=True, slots=True)
class Read:
    """When a layer's rows would be there if its table lived on this device, all else as decided; ms from step start."""

    device: str
    tier: Tier
    ready_ms: float
    chosen: bool


def reads_of(report: Report, layer: LayerDecision) -> list[Read]:
    """The layer's read on its own device first, then on the others that hold tables in this plan or could."""
    problem, decision = report.problem, report.decision
    reads = []
    for device in problem.devices:
        places = [
            Place(
                x.layer_id,
                device.name if x.layer_id == layer.layer_id else x.device,
                x.cache_rows,
                x.host_cache_rows,
            )
            for x in decision.layers
        ]
        cost = next(x for x in predict(problem, places).layers if x.layer_id == layer.layer_id)
        reads.append(Read(device.name, device.tier, problem.s_ms + cost.read_ms, device.name == layer.device))
    return sorted(reads, key=lambda read: (not read.chosen, read.device))


def figure_svg(report: Report) -> str:
    """The figure as an <svg> element without references to anything outside; raises ConfigError without matplotlib."""
    return _inline(_render(report, "svg").decode())


def figure_png(report: Report) -> bytes:
    """The same figure as an image."""
    return _render(report, "png")


def _render(report: Report, kind: str) -> bytes:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigError("the figure needs matplotlib", hint="pip install 'slacktier[plan]'") from exc
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "slacktier", "font.size": 9, "text.color": _INK}
    with mpl.rc_context(settings):
        few = len(report.decision.layers) <= PANELS_MAX
        figure = _panels(Figure, report) if few else _depth_chart(Figure, report)
        buffer = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=130)
    return buffer.getvalue()


def _inline(svg: str) -> str:
    """Without prolog and metadata: what HTML takes as an element."""
    body = svg[svg.index("<svg") :]
    return re.sub(r"\s*<metadata>.*?</metadata>", "", body, flags=re.DOTALL)


def _panels(figure_class: Any, report: Report) -> Any:
    """A panel per layer, each with its own time axis: windows differ by a factor of 30."""
    layers = report.decision.layers
    reads = [reads_of(report, layer) for layer in layers]
    rows = sum(len(each) for each in reads)
    figure = figure_class(figsize=(7.6, 0.7 + 0.28 * rows + 0.75 * len(layers)), layout="constrained")
    axes = figure.subplots(len(layers), 1, squeeze=False, height_ratios=[len(each) + 0.8 for each in reads])[:, 0]
    for axis, layer, each in zip(axes, layers, reads, strict=True):
        _panel(axis, layer, each, report.problem.s_ms)
    axes[-1].set_xlabel("ms since the step starts")
    return figure


def _panel(axis: Any, layer: LayerDecision, reads: list[Read], s_ms: float) -> None:
    window = layer.window_ms
    longest = max(window, *(read.ready_ms for read in reads)) or 1.0
    axis.axvspan(0, window, color=_WINDOW, lw=0)
    axis.axvline(window, color=_INK, lw=1)
    for y, read in enumerate(reads):
        colour, alpha = TIER_COLOURS[read.tier], 1.0 if read.chosen else 0.35
        in_time = min(read.ready_ms, max(window, s_ms))
        axis.barh(y, in_time - s_ms, left=s_ms, height=0.62, color=colour, alpha=alpha, lw=0)
        if read.ready_ms > in_time:
            axis.barh(y, read.ready_ms - in_time, left=in_time, height=0.62, color=_LATE, alpha=alpha, lw=0)
        late = read.ready_ms - window
        text = f"{read.ready_ms:.2f}" + (f", {late:.2f} late" if late > 0 else "")
        axis.text(read.ready_ms + longest * 0.01, y, text, va="center", fontsize=8)
    axis.set_yticks(range(len(reads)), [f"{r.device}{'' if r.chosen else ' (if it were)'}" for r in reads])
    axis.set_ylim(len(reads) - 0.4, -0.6)
    axis.set_xlim(0, longest * 1.18)
    axis.set_title(f"layer {layer.layer_id}: window {window:.2f} ms", loc="left", fontsize=9, fontweight="bold")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)


def _depth_chart(figure_class: Any, report: Report) -> Any:
    """Windows over depth as a line, and a point per layer where its rows are there."""
    layers, problem = report.decision.layers, report.problem
    figure = figure_class(figsize=(7.6, 3.8), layout="constrained")
    axis = figure.subplots()
    depth = [layer.layer_id for layer in layers]
    windows = [layer.window_ms for layer in layers]
    axis.fill_between(depth, windows, color=_WINDOW, lw=0)
    axis.plot(depth, windows, color=_INK, lw=1.2, label="window")
    for device in problem.devices:
        here = [layer for layer in layers if layer.device == device.name]
        if here:
            ready = [problem.s_ms + layer.read_ms for layer in here]
            label = f"rows there, {device.name} ({device.tier.value})"
            axis.plot([x.layer_id for x in here], ready, "o", ms=4, color=TIER_COLOURS[device.tier], label=label)
    axis.set_xlabel("layer")
    axis.set_ylabel("ms since the step starts")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper left", frameon=False)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    return figure
