# SPDX-License-Identifier: Apache-2.0
"""Figures of a characterization: one per layer and number of sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier_cli.characterize.policies import Curve
from slacktier_cli.characterize.results import LayerStudy, LoadStudy

_MARKERS: Final = "osD^v"


def figure_class() -> Any:
    """matplotlib's Figure; raises ConfigError if it is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as exc:
        raise ConfigError(f"matplotlib is not installed: {exc}", hint="pip install 'slacktier[plots]'") from exc
    # The same figures come out as the same bytes.
    mpl.rcParams["svg.hashsalt"] = "slacktier"
    return Figure


def write_figures(studies: Sequence[LayerStudy], directory: Path, file_format: str, title: str) -> list[Path]:
    """Writes layer<id>-s<sessions>.<format> into the directory, which is made if needed."""
    figure = figure_class()
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for study in studies:
        for load in study.loads:
            path = directory / f"layer{study.layer_id}-s{load.load.sessions}.{file_format}"
            drawn = _draw(figure(figsize=(15, 4.6), layout="constrained"), study, load, title)
            drawn.savefig(path, metadata={"Date": None} if file_format == "svg" else None)
            paths.append(path)
    return paths


def _draw(figure: Any, study: LayerStudy, load: LoadStudy, title: str) -> Any:
    figure.suptitle(f"{title}: layer {study.layer_id}, {load.load.sessions} sessions at a time")
    hits, pages, orders = figure.subplots(1, 3)
    for marker, curve in zip(_MARKERS, load.curves, strict=False):
        hits.plot(curve.rows, curve.hit_rate * 100, marker=marker, label=curve.policy)
        pages.plot(curve.rows, curve.pages_per_step, marker=marker, label=curve.policy)
    hits.axhline(load.unlimited * 100, color="grey", linestyle=":", label="never evicts")
    hits.set(ylabel="decode hit rate, %", ylim=(0, 100))
    pages.axhline(load.load.uncached_pages, color="grey", linestyle=":", label="no cache")
    pages.set(ylabel="4 KiB pages per step, all ranks", ylim=(0, None))
    _draw_orders(orders, load.curves[0])
    for axes in (hits, pages, orders):
        axes.set(xscale="log", xlabel="cache rows of the layer, all ranks")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def _draw_orders(axes: Any, curve: Curve) -> None:
    for marker, (at, rates) in zip(_MARKERS, enumerate(curve.hit_rate_by_order), strict=False):
        axes.plot(curve.rows, rates * 100, marker=marker, label=f"{at + 2}-grams, {curve.policy}")
    axes.set(ylabel="decode hit rate, %", ylim=(0, 100))
