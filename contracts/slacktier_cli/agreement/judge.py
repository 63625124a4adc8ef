# SPDX-License-Identifier: Apache-2.0
"""From the server's reports to predictions, and whether they agree with what was measured. No server in here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier.window import Device, Layer, MissCurve, Place, Problem, ReadModel, predict
from slacktier_cli.agreement.cases import FIXED, Case
from slacktier_cli.demo.server_report import LayerReport, ServerReport

WITHIN_MS: Final = 0.2
WITHIN_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's decode steps."""

    case: Case
    report: ServerReport

    def known(self, value: float | None) -> float:
        """A figure of the report; raises SlackTierError if there was no step to make it from."""
        if value is None:
            raise SlackTierError(f"{self.case.name}: no decode step was measured", hint="--seconds makes runs longer")
        return value

    @property
    def step_ms(self) -> float:
        """The median: other work on the machine makes single steps late, and would be counted as a stall."""
        return self.known(self.report.step_ms.p50)

    @property
    def mean_step_ms(self) -> float:
        return self.known(self.report.step_ms.mean)

    @property
    def stalls_ms(self) -> float:
        """Mean exposed stall of a step, all layers, from when their rows arrived."""
        return sum(self.known(layer.stall_ms.mean) for layer in self.layers)

    @property
    def layers(self) -> tuple[LayerReport, ...]:
        return self.report.layers


@dataclass(frozen=True, slots=True)
class Agreement:
    """One case: slowdown over the same load's step with the tables in memory, by the rule and as measured, in ms.

    measured_ms is of medians and judged; measured_mean_ms of means and stalls_ms, the engine's own count, stand beside
    """

    case: Case
    predicted_ms: float
    measured_ms: float
    measured_mean_ms: float
    stalls_ms: float
    pages_predicted: tuple[float, ...]
    pages_measured: tuple[float, ...]
    steps: int

    @property
    def agrees(self) -> bool:
        return abs(self.predicted_ms - self.measured_ms) <= max(WITHIN_MS, WITHIN_SHARE * abs(self.measured_ms))


@dataclass(frozen=True, slots=True)
class Load:
    """What calibration found for one number of sessions."""

    sessions: int
    step_ms: float
    mean_step_ms: float
    windows_ms: tuple[float, ...]
    curves: tuple[MissCurve, ...]
    s_ms: float
    layer_ids: tuple[int, ...]


def load_of(runs: Sequence[Measured]) -> Load:
    """Calibration runs of one number of sessions as the rule's inputs."""
    memory = sorted((run for run in runs if run.case.disk is None), key=lambda run: run.case.cache_rows)
    fixed = next(run for run in runs if run.case.disk == FIXED)
    bare = memory[0]
    windows = tuple(bare.known(layer.window_ms) for layer in bare.layers)
    curves = tuple(_curve(memory, index) for index in range(len(windows)))
    return Load(
        sessions=bare.case.sessions,
        step_ms=bare.step_ms,
        mean_step_ms=bare.mean_step_ms,
        windows_ms=windows,
        curves=curves,
        s_ms=max(0.0, fixed.known(fixed.layers[0].stall_ms.p50) - (_fixed_read_ms(fixed) - windows[0])),
        layer_ids=tuple(layer.layer_id for layer in bare.layers),
    )


def _fixed_read_ms(fixed: Measured) -> float:
    """When the first layer's rows were released, from the step's start."""
    return (FIXED.a_us + FIXED.b_us * fixed.known(fixed.layers[0].pages_per_step)) / 1000


def _curve(memory: Sequence[Measured], index: int) -> MissCurve:
    """Pages against the layer's rows; more rows never mean more pages, whatever the noise of a short run."""
    points: dict[int, float] = {}
    for run in memory:
        pages = run.known(run.layers[index].pages_per_step)
        points[run.case.cache_rows[index]] = min([pages, *points.values()])
    return MissCurve(tuple(points.items()))


def judge(load: Load, runs: Sequence[Measured]) -> list[Agreement]:
    """Each predicted case of this load against its measurement."""
    return [_agreement(load, run) for run in runs]


def _agreement(load: Load, run: Measured) -> Agreement:
    if run.case.disk is None:
        raise SlackTierError(f"{run.case.name}: a calibration run is not a prediction")
    layers = tuple(
        Layer(layer_id, window, curve)
        for layer_id, window, curve in zip(load.layer_ids, load.windows_ms, load.curves, strict=True)
    )
    # The emulated device has one rank's pages only, as its delay model counts them.
    device = Device(run.case.disk.name, Tier.EMULATED, ReadModel.from_delay(run.case.disk))
    problem = Problem(layers, (device,), step_ms=load.step_ms, s_ms=load.s_ms)
    places = [
        Place(layer_id, device.name, rows) for layer_id, rows in zip(load.layer_ids, run.case.cache_rows, strict=True)
    ]
    found = predict(problem, places)
    return Agreement(
        case=run.case,
        predicted_ms=found.slowdown_ms,
        measured_ms=run.step_ms - load.step_ms,
        measured_mean_ms=run.mean_step_ms - load.mean_step_ms,
        stalls_ms=run.stalls_ms,
        pages_predicted=tuple(cost.pages for cost in found.layers),
        pages_measured=tuple(run.known(layer.pages_per_step) for layer in run.layers),
        steps=run.report.steps,
    )
