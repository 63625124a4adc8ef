# SPDX-License-Identifier: Apache-2.0
"""The online cache split: moves cache rows between layers at run time, from the stalls that the steps show.

It compares the split in force with one small move at a time and keeps a move only if the stalls fell by more than
noise, so it is never far from the split that it started with; it keeps comparing with that one too. Paper, section 6.2.
Pure: the caller hands in each step's stall and applies the rows that come back.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from slacktier.errors import ConfigError
from slacktier.window_model import check_number

_BATCHES = 8  # means of so many stretches give the noise of a mean although single steps follow each other


@dataclass(frozen=True, slots=True)
class SplitSettings:
    """How bold the controller is.

    move_share     of all rows, moved in one trial
    settle_steps   steps after a move that are not counted: a layer's new rows are cold
    measure_steps  steps whose mean stall is compared
    noise_sigmas, gain_min_ms  a move is kept if the mean stall fell by more than both
    rest_max       measured stretches between trials at most; the rest doubles with every trial that failed
    """

    move_share: float = 0.1
    settle_steps: int = 400
    measure_steps: int = 400
    noise_sigmas: float = 2.0
    gain_min_ms: float = 0.02
    rest_max: int = 16

    def __post_init__(self) -> None:
        check_number("split controller: move_share", self.move_share, above=0, at_most=1)
        for name in ("noise_sigmas", "gain_min_ms", "settle_steps"):
            check_number(f"split controller: {name}", getattr(self, name))
        check_number("split controller: rest_max", self.rest_max, above=0)
        if self.measure_steps < _BATCHES:
            raise ConfigError(f"split controller: measure_steps is {self.measure_steps}, expected at least {_BATCHES}")


class _Phase(Enum):
    HOLD = 0  # measuring the split in force
    TRIAL = 1  # measuring a move


@dataclass(frozen=True, slots=True)
class _Measured:
    mean_ms: float
    error_ms: float


@dataclass(slots=True)
class SplitController:
    """Cache rows per layer id, moved while running.

    >>> controller = SplitController({1: 500_000, 14: 500_000})
    >>> rows = controller.observe(stall_ms=0.31)   # after every step; None while nothing changes
    """

    start: Mapping[int, int]
    settings: SplitSettings = field(default_factory=SplitSettings)
    rows: dict[int, int] = field(init=False)
    _before: dict[int, int] = field(init=False)
    _phase: _Phase = field(default=_Phase.HOLD, init=False)
    _settle: int = field(default=0, init=False)
    _stalls: list[float] = field(default_factory=list, init=False)
    _held: _Measured = field(default=_Measured(0.0, math.inf), init=False)  # infinite error: nothing measured yet
    _rest: int = field(default=1, init=False)
    _rested: int = field(default=0, init=False)
    _turn: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if len(self.start) < 2:
            raise ConfigError(f"split controller: {len(self.start)} layers, expected at least 2")
        for layer_id, count in self.start.items():
            check_number(f"split controller: rows of layer {layer_id}", count)
        self.start = dict(sorted(self.start.items()))
        self.rows = dict(self.start)
        self._before = dict(self.start)

    def observe(self, stall_ms: float) -> Mapping[int, int] | None:
        """Take one step's exposed stall, all layers together; return the rows per layer if they are to change now."""
        check_number("split controller: stall_ms", stall_ms)
        if self._settle:
            self._settle -= 1
            return None
        self._stalls.append(stall_ms)
        if len(self._stalls) < self.settings.measure_steps:
            return None
        measured = _measure(self._stalls)
        self._stalls.clear()
        if self._phase is _Phase.TRIAL:
            return self._judge(measured)
        return self._hold(measured)

    def _hold(self, measured: _Measured) -> Mapping[int, int] | None:
        # Stalls that moved on their own mean other traffic: what failed before may help now.
        if _differs(self._held, measured, 2 * self.settings.noise_sigmas):
            self._rest = 1
        self._held = measured
        self._rested += 1
        # Nothing to gain from a step that does not wait.
        if self._rested < self._rest or measured.mean_ms <= self.settings.gain_min_ms:
            return None
        move = self._next_move()
        if move is None:
            return None
        self._before = dict(self.rows)
        self._phase = _Phase.TRIAL
        return self._apply(move)

    def _judge(self, measured: _Measured) -> Mapping[int, int] | None:
        """Keep the trial or go back; a kept one is tried again further the same way."""
        gain = self._held.mean_ms - measured.mean_ms
        noise = self.settings.noise_sigmas * math.hypot(self._held.error_ms, measured.error_ms)
        self._phase = _Phase.HOLD
        self._rested = 0
        if gain > max(noise, self.settings.gain_min_ms):
            self._held, self._rest = measured, 1
            return None
        self._turn += 1
        self._rest = min(self._rest * 2, self.settings.rest_max)
        return self._apply(self._before)

    def _next_move(self) -> dict[int, int] | None:
        """The next split to try: a move between two layers, or the split of the start; None if no move is possible."""
        pairs: Sequence[tuple[int, int]] = list(itertools.permutations(self.rows, 2))
        for _ in range(len(pairs) + 1):
            at = self._turn % (len(pairs) + 1)
            if at == len(pairs):
                if self.rows != self.start:
                    return dict(self.start)
            else:
                giver, taker = pairs[at]
                count = min(self.rows[giver], round(sum(self.rows.values()) * self.settings.move_share))
                if count:
                    return self.rows | {giver: self.rows[giver] - count, taker: self.rows[taker] + count}
            self._turn += 1
        return None

    def _apply(self, rows: Mapping[int, int]) -> Mapping[int, int]:
        self.rows = dict(rows)
        self._settle = self.settings.settle_steps
        return dict(self.rows)


def _measure(stalls: Sequence[float]) -> _Measured:
    """Mean and its standard error from the means of consecutive stretches."""
    size = len(stalls) // _BATCHES
    means = [statistics.fmean(stalls[i * size : (i + 1) * size]) for i in range(_BATCHES)]
    return _Measured(statistics.fmean(stalls), statistics.stdev(means) / math.sqrt(_BATCHES))


def _differs(first: _Measured, second: _Measured, sigmas: float) -> bool:
    return abs(first.mean_ms - second.mean_ms) > sigmas * math.hypot(first.error_ms, second.error_ms)
