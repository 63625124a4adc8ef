# SPDX-License-Identifier: Apache-2.0
"""From measured blocks to the window rule's question, its answer, and how well the rule predicted each arm.

Devices are the tiers that the arms measured, each with a read model fitted to them. Read times and steps are medians:
a busy machine's late wake-ups are not the device's. What was measured is one rank with its devices to itself, so the
answer is for one such disk per rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from slacktier.delay import SHIPPED
from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier.window import Decision, Device, Layer, MissCurve, Place, Problem, ReadModel, decide, predict
from slacktier.window_fit import ReadSample, fit_read_model
from slacktier_cli.demo.arms import BASELINE, LayerSource
from slacktier_cli.demo.results import ArmFigures, LayerFigures

# Only the ratio matters: memory costs some forty times as much as flash; another node's memory is shared by two.
COST_PER_GIB: Final = {Tier.DRAM: 4.0, Tier.NVME: 0.1}
_COST_REMOTE: Final = 2.0
_SAMPLES_LEAST: Final = 3  # for the read model's three terms
_SPREAD_LEAST: Final = 0.1  # of the pages, below which a slope would be fitted to noise
_DRAM_NAME: Final = "host memory"
_DISK_NAME: Final = "this disk"
_TCP_NAME: Final = "another process over TCP"


@dataclass(frozen=True, slots=True)
class ArmPrediction:
    """One arm's step against the baseline's, in ms: by the rule, and the median that the server measured."""

    arm: str
    predicted_ms: float
    measured_ms: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The question put to decide(), its answer, and the check of the rule against the arms.

    measured  the arm that has every layer where the decision puts it; None if none was run
    """

    problem: Problem
    decision: Decision
    predictions: tuple[ArmPrediction, ...]
    measured: ArmFigures | None


def device_name(source: LayerSource) -> str:
    """How a sentence calls the place."""
    if source.tier is Tier.EMULATED:
        return f"emulated {source.delay}"
    return {Tier.DRAM: _DRAM_NAME, Tier.TCP: _TCP_NAME}.get(source.tier, _DISK_NAME)


def place_tables(
    figures: Sequence[ArmFigures], *, row_counts: Sequence[int], row_bytes: int, ranks: int, cache_rows: int,
    slo_pct: float,
) -> Placement:  # fmt: skip
    """Ask the window rule where each layer's table can live.

    row_counts  rows of each layer's table to plan for, in order of use
    raises      SlackTierError if the arms measured no decode step
    """
    baseline = next(figure for figure in figures if figure.arm.name == BASELINE)
    if not baseline.step_p50_ms:
        raise SlackTierError("the DRAM arm measured no decode step: there is nothing to compare with")
    problem = Problem(
        layers=tuple(
            Layer(
                layer.layer_id,
                window_ms=_known(layer.window_ms, layer),
                misses=_miss_curve(figures, index),
                row_count=row_counts[index],
                row_bytes=row_bytes,
            )
            for index, layer in enumerate(baseline.layers)
        ),
        devices=tuple(_device(source, figures, ranks) for source in _sources(figures)),
        step_ms=baseline.step_p50_ms,
        ranks=ranks,
        slo_pct=slo_pct,
        cache_rows=cache_rows if any(figure.arm.is_cached for figure in figures) else 0,
    )
    decision = decide(problem)
    return Placement(problem, decision, _predictions(problem, figures, baseline), _measured(decision, figures))


def _measured(decision: Decision, figures: Sequence[ArmFigures]) -> ArmFigures | None:
    """Of the arms with the decision's places, the one that has a cache exactly if the decision uses one, else any."""
    alike = [
        figure
        for figure in figures
        if [device_name(figure.arm.source(index)) for index in range(len(figure.layers))]
        == [layer.device for layer in decision.layers]
    ]
    wants_cache = any(layer.cache_rows for layer in decision.layers)
    return min(alike, key=lambda figure: figure.arm.is_cached != wants_cache, default=None)


def _known(value: float | None, layer: LayerFigures) -> float:
    if value is None:
        raise SlackTierError(f"layer {layer.layer_id}: no decode step was measured")
    return value


def _sources(figures: Sequence[ArmFigures]) -> list[LayerSource]:
    """Every place that some arm used, in the order of the arms."""
    return list(dict.fromkeys(source for figure in figures for source in (figure.arm.first, figure.arm.later)))


def _device(source: LayerSource, figures: Sequence[ArmFigures], ranks: int) -> Device:
    return Device(
        device_name(source),
        source.tier,
        _read_model(source, [sample for figure in figures for sample in _samples(figure, source)]),
        units=ranks,
        cost_per_gib=COST_PER_GIB.get(source.tier, _cost_emulated(source)),
    )


def _read_model(source: LayerSource, samples: Sequence[ReadSample]) -> ReadModel:
    """An emulated device's own delay model; for a real one what the samples can tell.

    Pages too alike to tell terms apart give a fixed time. Two samples give a fixed time and one per page: with a third
    term they would be met exactly, by numbers that mean nothing at other page counts.
    """
    if source.tier is Tier.EMULATED:
        return ReadModel.from_delay(SHIPPED[source.delay])
    if not samples:
        return ReadModel(0.0)
    pages = [sample.pages_own for sample in samples]
    if max(pages) - min(pages) < _SPREAD_LEAST * max(pages):
        return ReadModel(fmean(sample.read_us for sample in samples), pages_min=min(pages), pages_max=max(pages))
    if len(samples) < _SAMPLES_LEAST:
        alone = [ReadSample(sample.pages_own, 0.0, sample.read_us) for sample in samples]
        return fit_read_model([*alone, *alone]).model  # twice, to be enough samples; they weigh the same
    return fit_read_model(samples).model


def _cost_emulated(source: LayerSource) -> float:
    return COST_PER_GIB[Tier.NVME] if "nvme" in source.delay else _COST_REMOTE


def _samples(figure: ArmFigures, source: LayerSource) -> list[ReadSample]:
    """The arm's layers that this place served; only their pages queue with each other."""
    layers = [layer for index, layer in enumerate(figure.layers) if figure.arm.source(index) == source]
    total, queued, samples = sum(layer.pages_per_step or 0.0 for layer in layers), 0.0, []
    for layer in layers:
        queued += layer.pages_per_step or 0.0
        if layer.read_p50_ms is not None:
            samples.append(ReadSample(queued, max(0.0, total - queued), 1000 * layer.read_p50_ms))
    return samples


def _miss_curve(figures: Sequence[ArmFigures], index: int) -> MissCurve:
    """Pages per step without a cache and with each cache size that an arm had; more rows never mean more pages."""
    uncached = [pages for rows, pages in _pages(figures, index) if rows == 0]
    if not uncached:
        raise SlackTierError(f"layer index {index}: no arm without a cache measured its pages")
    points = {0: fmean(uncached)}
    for rows, pages in sorted(_pages(figures, index)):
        if rows:
            points[rows] = min(pages, *points.values())
    return MissCurve(tuple(points.items()))


def _pages(figures: Sequence[ArmFigures], index: int) -> list[tuple[int, float]]:
    """(cache rows, pages per step) of each arm; what a step reads does not depend on the tier."""
    return [
        (figure.layers[index].cache_rows, pages)
        for figure in figures
        if figure.layers and (pages := figure.layers[index].pages_per_step) is not None
    ]


def _predictions(problem: Problem, figures: Sequence[ArmFigures], baseline: ArmFigures) -> tuple[ArmPrediction, ...]:
    stalls = {figure.arm.name: predict(problem, _places(figure)).slowdown_ms for figure in figures}
    return tuple(
        ArmPrediction(
            figure.arm.name,
            stalls[figure.arm.name] - stalls[BASELINE],
            figure.step_p50_ms - (baseline.step_p50_ms or 0.0),
        )
        for figure in figures
        if figure.arm.name != BASELINE and figure.step_p50_ms is not None
    )


def _places(figure: ArmFigures) -> list[Place]:
    return [
        Place(layer.layer_id, device_name(figure.arm.source(index)), layer.cache_rows)
        for index, layer in enumerate(figure.layers)
    ]
