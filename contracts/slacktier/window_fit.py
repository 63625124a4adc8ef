# SPDX-License-Identifier: Apache-2.0
"""Models fitted from measurements: a tier's read time, windows over batch size, and the fixed cost of a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slacktier.errors import ConfigError
from slacktier.window_model import ReadModel, check_number, unique


@dataclass(frozen=True, slots=True)
class ReadSample:
    """One measured read of a step's pages.

    pages_own    pages of the layer and of layers submitted before it on the device
    pages_other  pages of layers submitted after it
    """

    pages_own: float
    pages_other: float
    read_us: float

    def __post_init__(self) -> None:
        for name in ("pages_own", "pages_other", "read_us"):
            check_number(f"read sample: {name}", getattr(self, name))


@dataclass(frozen=True, slots=True)
class ReadFit:
    """A read model with how well it fits: residual = measured - fitted, in sample order."""

    model: ReadModel
    r2: float
    residuals_us: tuple[float, ...]

    @property
    def worst_us(self) -> float:
        return max(self.residuals_us, key=abs)


def fit_read_model(samples: Sequence[ReadSample], *, ranks_per_unit: float = 1.0) -> ReadFit:
    """T = a + b * P_own + c * P_other by least squares, none of the three below zero.

    Raises ConfigError where the samples cannot tell a from b: fewer than three, or all with the same pages.
    """
    if len(samples) < 3:
        raise ConfigError(f"{len(samples)} read samples, expected at least 3")
    if len({sample.pages_own for sample in samples}) < 2:
        raise ConfigError(f"all read samples have {samples[0].pages_own:g} own pages: cannot tell a from b")
    rows = [(1.0, sample.pages_own, sample.pages_other) for sample in samples]
    times = [sample.read_us for sample in samples]
    a, b, c = _least_squares_from_zero(rows, times)
    residuals = [time - (a + b * own + c * other) for (_, own, other), time in zip(rows, times, strict=True)]
    rmse, r2 = _quality(times, residuals)
    own = [sample.pages_own for sample in samples]
    model = ReadModel(a, b, c, ranks_per_unit, pages_min=min(own), pages_max=max(own), rmse_us=rmse)
    return ReadFit(model, r2, tuple(residuals))


def _quality(values: Sequence[float], residuals: Sequence[float]) -> tuple[float, float]:
    """Root mean square error and R2 (1 where the values do not vary and are hit)."""
    squares = sum(r * r for r in residuals)
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values)
    if not spread:
        return math.sqrt(squares / len(values)), 1.0 if not squares else 0.0
    return math.sqrt(squares / len(values)), 1 - squares / spread


def _least_squares_from_zero(rows: Sequence[tuple[float, ...]], values: Sequence[float]) -> list[float]:
    """Coefficients >= 0 with the least squared error: with three of them, every set of non-zero ones can be tried."""
    width = len(rows[0])
    scales = [max(abs(row[i]) for row in rows) or 1.0 for i in range(width)]
    best, best_squares = [0.0] * width, math.inf
    for used in itertools.chain.from_iterable(itertools.combinations(range(width), n) for n in range(1, width + 1)):
        columns = [[row[i] / scales[i] for i in used] for row in rows]
        solved = _solve(
            [[sum(row[i] * row[j] for row in columns) for j in range(len(used))] for i in range(len(used))],
            [sum(row[i] * value for row, value in zip(columns, values, strict=True)) for i in range(len(used))],
        )
        if solved is None or min(solved) < 0:
            continue
        fitted = [sum(x * y for x, y in zip(row, solved, strict=True)) for row in columns]
        squares = sum((value - fit) ** 2 for value, fit in zip(values, fitted, strict=True))
        if squares < best_squares:
            best, best_squares = [0.0] * width, squares
            for i, value in zip(used, solved, strict=True):
                best[i] = value / scales[i]
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gaussian elimination with pivoting; None where the matrix is singular."""
    n = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < 1e-12:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for r in range(n):
            if r != i:
                factor = rows[r][i] / rows[i][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [rows[i][n] / rows[i][i] for i in range(n)]


@dataclass(frozen=True, slots=True)
class WindowRow:
    """Measured windows at one load: ms per layer id, and the step's time with all tables in host memory."""

    sessions: int
    step_ms: float
    windows_ms: Mapping[int, float]

    def __post_init__(self) -> None:
        check_number("windows: sessions", self.sessions, above=0)
        check_number(f"windows at {self.sessions} sessions: step_ms", self.step_ms, above=0)
        for layer_id, window in self.windows_ms.items():
            check_number(f"windows at {self.sessions} sessions: layer {layer_id}", window)
            if window > self.step_ms:
                raise ConfigError(
                    f"windows at {self.sessions} sessions: layer {layer_id}'s window of {window:g} ms is longer than "
                    f"the step of {self.step_ms:g} ms",
                    hint="windows and steps are in milliseconds",
                )


@dataclass(frozen=True, slots=True)
class WindowTable:
    """Windows per layer and load, straight lines between measured loads."""

    rows: tuple[WindowRow, ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise ConfigError("windows: no measured load")
        object.__setattr__(self, "rows", tuple(sorted(self.rows, key=lambda row: row.sessions)))
        unique("windows: load of sessions", (row.sessions for row in self.rows))
        every = {layer_id for row in self.rows for layer_id in row.windows_ms}
        for row in self.rows:
            if missing := sorted(every - set(row.windows_ms)):
                raise ConfigError(
                    f"windows: layer {missing[0]} has no window at {row.sessions} sessions, but has at another load",
                    hint="measure the layer at that load, or leave the load out",
                )

    @property
    def sessions_max(self) -> int:
        return self.rows[-1].sessions

    def at(self, sessions: int) -> WindowRow:
        """Windows and step at this load. Above the measured loads those of the highest, which are shorter than real.

        Raises ConfigError below the measured loads, where real windows are shorter than any measured one.
        """
        check_number("sessions", sessions, above=0)
        first, last = self.rows[0], self.rows[-1]
        if sessions < first.sessions:
            raise ConfigError(
                f"windows were measured from {first.sessions} to {last.sessions} sessions; {sessions} is below that",
                hint="windows shrink with the batch: measure them at that load",
            )
        if sessions >= last.sessions:
            return WindowRow(sessions, last.step_ms, last.windows_ms)
        index = next(i for i, row in enumerate(self.rows) if row.sessions > sessions)
        low, high = self.rows[index - 1], self.rows[index]
        share = (sessions - low.sessions) / (high.sessions - low.sessions)

        def between(x: float, y: float) -> float:
            return x + (y - x) * share

        windows = {k: between(value, high.windows_ms[k]) for k, value in low.windows_ms.items()}
        return WindowRow(sessions, between(low.step_ms, high.step_ms), windows)


@dataclass(frozen=True, slots=True)
class KappaFit:
    """The fixed cost of a step and what is left after it."""

    kappa_ms: float
    rmse_ms: float
    r2: float


def fit_kappa(measured_ms: Sequence[float], predicted_ms: Sequence[float]) -> KappaFit:
    """kappa, at least 0, from measured slowdowns and those predicted with kappa = 0, run by run."""
    if not measured_ms or len(measured_ms) != len(predicted_ms):
        raise ConfigError(f"{len(measured_ms)} measured and {len(predicted_ms)} predicted slowdowns, expected pairs")
    excess = [m - p for m, p in zip(measured_ms, predicted_ms, strict=True)]
    for value in excess:
        if not math.isfinite(value):
            raise ConfigError(f"slowdown difference is {value}, expected a finite number")
    kappa = max(0.0, sum(excess) / len(excess))
    rmse, r2 = _quality(measured_ms, [value - kappa for value in excess])
    return KappaFit(kappa, rmse, r2)
