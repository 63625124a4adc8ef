# SPDX-License-Identifier: Apache-2.0
"""A characterization as JSON and as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from slacktier_cli.characterize.policies import Curve, Load, Policy
from slacktier_cli.characterize.results import LayerStudy, LoadStudy, Lossy
from slacktier_cli.characterize.sampling import Sampling
from slacktier_cli.traces import Trace


def as_json(studies: Sequence[LayerStudy], tp: int) -> dict[str, Any]:
    """layers: everything found; miss_curves: what the window rule takes (MissCurve points of one rank)."""
    return {
        "sampling": _sampling_json(studies[0].sampling),
        "layers": [_layer_json(study) for study in studies],
        "miss_curves": [
            {
                "layer_id": study.layer_id,
                "sessions": load.load.sessions,
                "policy": str(curve.policy),
                "tp": tp,
                "points": miss_points(load.load, curve, tp),
            }
            for study in studies
            for load in study.loads
            for curve in load.curves
        ],
    }


def miss_points(load: Load, curve: Curve, tp: int) -> list[list[float]]:
    """(cache rows, pages per step) of one of tp ranks, from no cache on; never rising.

    Rows are dealt to ranks by row id mod tp, so each rank has 1/tp of the cache and of the pages.
    """
    # A FIFO-like cache may, by chance, miss a little more at a larger size; a plan cannot use that.
    pages = np.minimum.accumulate(np.concatenate([[load.uncached_pages], curve.pages_per_step]))
    return [[rows // tp, float(count) / tp] for rows, count in zip((0, *curve.rows), pages, strict=True)]


def largest_difference(sampled: Sequence[LayerStudy], exact: Sequence[LayerStudy]) -> dict[str, Any]:
    """Where a sample's hit rate is farthest from the exact one, in points."""
    worst: dict[str, Any] = {"points": -1.0}
    for study, truth in zip(sampled, exact, strict=True):
        for load, true_load in zip(study.loads, truth.loads, strict=True):
            for curve, true_curve in zip(load.curves, true_load.curves, strict=True):
                off = np.abs(curve.hit_rate - true_curve.hit_rate) * 100
                at = int(off.argmax())
                if off[at] > worst["points"]:
                    worst = {
                        "points": float(off[at]),
                        "layer_id": study.layer_id,
                        "sessions": load.load.sessions,
                        "policy": str(curve.policy),
                        "rows": curve.rows[at],
                        "sampled": float(curve.hit_rate[at]),
                        "exact": float(true_curve.hit_rate[at]),
                    }
    return worst | {"sampling": _sampling_json(sampled[0].sampling)}


@dataclass(frozen=True)
class Section:
    """A table with the lines above and below it; rich would wrap them to the width of the table."""

    title: str
    table: Table
    caption: str


def sections(studies: Sequence[LayerStudy], tp: int) -> Iterator[Section]:
    """Per layer and number of sessions: hit rates, pages, n-gram orders, lossy skipping; then reuse of all layers."""
    for study in studies:
        for load in study.loads:
            yield _hits(study, load)
            yield _pages(study, load, tp)
            yield _orders(study, load)
            yield _lossy(study, load.lossy, tp)
    yield _steps(studies)
    yield _reuse(studies)


def _section(title: str, columns: Sequence[str], caption: str = "") -> Section:
    """Numbers to the right, nothing wrapped: a cut figure would be a wrong one."""
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return Section(title, table, caption)


def _hits(study: LayerStudy, load: LoadStudy) -> Section:
    section = _section(
        f"layer {study.layer_id}, {load.load.sessions} sessions: hit rate of decode lookups",
        ["cache rows", "of table", *(curve.policy for curve in load.curves)],
        f"a cache that never evicts: {load.unlimited:.1%}" + _static_note(load),
    )
    for at, rows in enumerate(load.curves[0].rows):
        rates = (f"{curve.hit_rate[at]:.1%}" for curve in load.curves)
        section.table.add_row(f"{rows:,}", f"{rows / study.row_count:.3%}", *rates)
    return section


def _static_note(load: LoadStudy) -> str:
    if not any(curve.policy is Policy.STATIC for curve in load.curves):
        return ""
    return f"; static: rows that other sessions used most; {load.static_sessions} held-out sessions at a time"


def _pages(study: LayerStudy, load: LoadStudy, tp: int) -> Section:
    section = _section(
        f"layer {study.layer_id}, {load.load.sessions} sessions: pages per step" + _of_rank(tp),
        ["cache rows", *(curve.policy for curve in load.curves)],
        f"a step decodes {load.load.tokens_per_step:.4g} tokens",
    )
    points = [miss_points(load.load, curve, tp) for curve in load.curves]
    for at in range(len(points[0])):
        section.table.add_row(f"{points[0][at][0]:,}", *(f"{curve[at][1]:,.0f}" for curve in points))
    return section


def _of_rank(tp: int) -> str:
    return "" if tp == 1 else f" (cache rows and pages of one of {tp} ranks)"


def _orders(study: LayerStudy, load: LoadStudy) -> Section:
    curve = load.curves[0]
    section = _section(
        f"layer {study.layer_id}, {load.load.sessions} sessions: {curve.policy} hit rate by n-gram order",
        ["cache rows", *(f"{order + 2}-grams" for order in range(study.orders))],
    )
    for at, rows in enumerate(curve.rows):
        section.table.add_row(f"{rows:,}", *(f"{rate:.1%}" for rate in curve.hit_rate_by_order[:, at]))
    return section


def _lossy(study: LayerStudy, lossy: Lossy, tp: int) -> Section:
    section = _section(
        f"layer {study.layer_id}, {lossy.sessions} sessions: lossy skipping, {lossy.skipping.policy} pages per step"
        + _of_rank(tp),
        ["cache rows", "all rows read", "unseen skipped"],
        f"a step decodes {lossy.tokens_per_step:.4g} tokens; {lossy.share:.1%} of lookups are outside the seen-set",
    )
    section.table.add_row("0", f"{lossy.uncached_pages_all / tp:,.0f}", f"{lossy.uncached_pages / tp:,.0f}")
    for at, rows in enumerate(lossy.skipping.rows):
        both = (lossy.reading_all, lossy.skipping)
        section.table.add_row(f"{rows // tp:,}", *(f"{curve.pages_per_step[at] / tp:,.0f}" for curve in both))
    return section


def _steps(studies: Sequence[LayerStudy]) -> Section:
    section = _section(
        "decode steps", ["layer", "sessions", "tokens per step", "distinct rows", "pages per row", "steps"]
    )
    for study in studies:
        for load in study.loads:
            section.table.add_row(
                str(study.layer_id), str(load.load.sessions), f"{load.load.tokens_per_step:.4g}",
                f"{load.steps.share:.1%}", f"{load.steps.pages_per_row:.4f}", f"{load.steps.count:,}",
            )  # fmt: skip
    return section


_REUSE: Final[dict[str, Callable[[LayerStudy], float]]] = {
    "distinct rows, 256 decode tokens drawn at random": lambda study: study.random_batches.share,
    "distinct rows, 8K tokens in sequence": lambda study: study.windows.share,
    "distinct rows, 8K tokens of interleaved prefill": lambda study: study.prefill_windows.share,
    "decode, row used in the turn's prompt": lambda study: study.coverage.prompt,
    "decode, row used in the prompt or the answer so far": lambda study: study.coverage.prompt_and_answer,
    "decode of first turns, row used in the prompt": lambda study: study.coverage.first_turn,
    "decode, row outside the seen-set": lambda study: study.unseen.decode,
    "all lookups, row outside the seen-set": lambda study: study.unseen.all,
}


def _reuse(studies: Sequence[LayerStudy]) -> Section:
    section = _section("share of lookups", ["", *(f"layer {study.layer_id}" for study in studies)])
    section.table.columns[0].justify = "left"
    for name, value in _REUSE.items():
        section.table.add_row(name, *(f"{value(study):.1%}" for study in studies))
    return section


def _layer_json(study: LayerStudy) -> dict[str, Any]:
    return {
        "layer_id": study.layer_id,
        "row_count": study.row_count,
        "columns": study.columns,
        "rows_per_page": study.rows_per_page,
        "distinct_rows": round(study.distinct_rows),
        "loads": [_load_json(load) for load in study.loads],
        "distinct_256_decode": asdict(study.random_batches),
        "distinct_8k": asdict(study.windows),
        "distinct_8k_prefill": asdict(study.prefill_windows),
        "coverage": asdict(study.coverage),
        "unseen": asdict(study.unseen),
    }


def _load_json(load: LoadStudy) -> dict[str, Any]:
    lossy = load.lossy
    return {
        **asdict(load.load),
        "unlimited_hit_rate": load.unlimited,
        "distinct_in_steps": asdict(load.steps),
        "curves": [_curve_json(curve) for curve in load.curves],
        "static_sessions": load.static_sessions,
        "lossy": {
            "sessions": lossy.sessions,
            "tokens_per_step": lossy.tokens_per_step,
            "skipped_share": lossy.share,
            "policy": str(lossy.skipping.policy),
            "rows": [0, *lossy.skipping.rows],
            "pages_per_step": [lossy.uncached_pages_all, *lossy.reading_all.pages_per_step.tolist()],
            "pages_per_step_skipping": [lossy.uncached_pages, *lossy.skipping.pages_per_step.tolist()],
        },
    }


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "policy": str(curve.policy),
        "rows": list(curve.rows),
        "hit_rate": curve.hit_rate.tolist(),
        "hit_rate_all": curve.hit_rate_all.tolist(),
        "hit_rate_by_order": {str(at + 2): rates.tolist() for at, rates in enumerate(curve.hit_rate_by_order)},
        "pages_per_step": curve.pages_per_step.tolist(),
    }


def _sampling_json(sampling: Sampling) -> dict[str, Any]:
    return {
        "rate": float(sampling.rate),
        "heads": sampling.heads,
        "of_heads": sampling.head_count,
        "share_of_pages": float(sampling.share),
        "seed": sampling.seed,
    }


def trace_summary(path: Path, trace: Trace) -> dict[str, Any]:
    """What was measured, as part of the JSON."""
    return {
        "path": str(path),
        "sessions": trace.session_count,
        "tokens": len(trace.tokens),
        "decode_tokens": int(trace.decode_mask.sum()),
        "sources": [trace.source_names[source] for source in np.unique(trace.session_source)],
        "vocab_size": trace.vocab_size,
    }
