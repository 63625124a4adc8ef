# SPDX-License-Identifier: Apache-2.0
"""How much an arm's TPOT exceeds the baseline's, and how sure that is.

Requests are paired: a request counts where it was measured in both arms of a round. Two things vary: rounds, with the
machine's state, and sessions, with their prompts. Each resample draws rounds with replacement and, within all of them,
sessions with replacement; a session's requests go together, since they share their history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier_loadtest.figures import BlockResult

RESAMPLES: Final = 4000
CONFIDENCE: Final = 0.95
_AT_ONCE: Final = 500
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Overhead:
    """Mean TPOT against the baseline's, in percent.

    interval  of the resamples' overheads, at CONFIDENCE; rounds: least and most of the rounds
    pairs     requests that were compared
    """

    percent: float
    interval: tuple[float, float]
    rounds: tuple[float, float]
    pairs: int

    @property
    def is_tie(self) -> bool:
        """Zero lies within the interval."""
        return self.interval[0] <= 0.0 <= self.interval[1]


def overhead(blocks: Sequence[BlockResult], baseline: Sequence[BlockResult], *, seed: int) -> Overhead | None:
    """None if no request was measured in both arms of one round."""
    own, other, pairs = _sums(blocks, baseline)
    if not pairs:
        return None
    per_round = [100 * (a / b - 1) for a, b in zip(own.sum(1), other.sum(1), strict=True) if b]
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.nanpercentile(_resampled(own, other, seed), [tail, 100 - tail])
    percent = 100 * (own.sum() / other.sum() - 1)
    return Overhead(float(percent), (100 * float(low), 100 * float(high)), (min(per_round), max(per_round)), pairs)


def _resampled(own: _Floats, other: _Floats, seed: int) -> _Floats:
    """The overhead of each resample, as a share; NaN where it drew no pair."""
    rng = np.random.default_rng((seed, len("bootstrap")))
    rounds, sessions = own.shape
    parts = []
    for _ in range(RESAMPLES // _AT_ONCE):
        picked = rng.multinomial(rounds, np.full(rounds, 1 / rounds), size=_AT_ONCE)
        weights = rng.multinomial(sessions, np.full(sessions, 1 / sessions), size=_AT_ONCE)
        above, below = ((picked @ sums * weights).sum(1) for sums in (own, other))
        parts.append(np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan) - 1)
    return np.concatenate(parts)


def _sums(blocks: Sequence[BlockResult], baseline: Sequence[BlockResult]) -> tuple[_Floats, _Floats, int]:
    """TPOT of the paired requests added up: [rounds, sessions] of the arm and of the baseline, and their number."""
    by_round = {block.round_index: _tpots(block) for block in baseline}
    rounds = [(_tpots(block), by_round[block.round_index]) for block in blocks if block.round_index in by_round]
    sessions = sorted({request[1] for own, other in rounds for request in own.keys() & other.keys()})
    column = {session: index for index, session in enumerate(sessions)}
    sums = np.zeros((2, len(rounds), len(sessions)))
    pairs = 0
    for row, (own, other) in enumerate(rounds):
        for request in own.keys() & other.keys():
            sums[0, row, column[request[1]]] += own[request]
            sums[1, row, column[request[1]]] += other[request]
            pairs += 1
    return sums[0], sums[1], pairs


def _tpots(block: BlockResult) -> dict[tuple[str, str, int], float]:
    return {
        (phase.name, each.session, each.turn_index): each.record.tpot_ms
        for phase in block.phases
        for each in phase.records.completed
        if each.record.tpot_ms is not None
    }
