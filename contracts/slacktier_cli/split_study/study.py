# SPDX-License-Identifier: Apache-2.0
"""Fixed splits beside the online controller that starts from the same split, on one mix and then on another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slacktier.split_controller import SplitController
from slacktier_cli.split_study.arms import ArmResult, Rule, run_arm
from slacktier_cli.split_study.steps import Half
from slacktier_rowids.models import Hasher

SETTLED_FROM: Final = 0.5  # share of each half after which caches and controller have had their time
_BATCHES: Final = 8  # means of so many stretches give the noise of a mean although single steps follow each other
_SIGMAS: Final = 2.0


@dataclass(frozen=True)
class Pair:
    """One starting split (layer 1's share of the rows), left alone and moved."""

    share: float
    fixed: ArmResult
    online: ArmResult

    def half(self, index: int, name: str) -> dict[str, Any]:
        """What one half shows, in ms; `worse` says that the controller lost more than noise."""
        fixed, online = (_settled(arm, index) for arm in (self.fixed, self.online))
        lost = statistics.fmean(online) - statistics.fmean(fixed)
        noise = _SIGMAS * math.hypot(_error(fixed), _error(online))
        return {
            "mix": name,
            "fixed_ms": statistics.fmean(fixed),
            "online_ms": statistics.fmean(online),
            "noise_ms": noise,
            "worse": lost > max(noise, SplitController(self.online.rows[index]).settings.gain_min_ms),
            "rows": {str(layer): rows for layer, rows in self.online.rows[index].items()},
        }


def run(
    hasher: Hasher, halves: Sequence[Half], rule: Rule, *, cache_rows: int, shares: Sequence[float],
    advance: Callable[[int], None],
) -> list[Pair]:  # fmt: skip
    """Both arms of every share; shares are the first layer's, the rest is dealt evenly to the others."""
    pairs = []
    for share in shares:
        split = split_of(hasher.layout.layer_ids, cache_rows, share)
        fixed = run_arm(hasher, halves, rule, split, None, advance)
        online = run_arm(hasher, halves, rule, split, SplitController(split), advance)
        pairs.append(Pair(share, fixed, online))
    return pairs


def split_of(layer_ids: Sequence[int], cache_rows: int, share: float) -> dict[int, int]:
    """Cache rows by layer id: the share to the first layer, what is left evenly to the others."""
    first, *others = layer_ids
    rows = {first: round(cache_rows * share)}
    left = cache_rows - rows[first]
    return rows | {layer: left // len(others) for layer in others}


def as_json(pairs: Sequence[Pair], halves: Sequence[Half]) -> list[dict[str, Any]]:
    return [
        {
            "start_share": pair.share,
            "moves": pair.online.moves,
            "halves": [pair.half(index, half.name) for index, half in enumerate(halves)],
        }
        for pair in pairs
    ]


def _settled(arm: ArmResult, half: int) -> Sequence[float]:
    steps = arm.stalls[half]
    return steps[int(len(steps) * SETTLED_FROM) :]


def _error(stalls: Sequence[float]) -> float:
    """Standard error of the mean, from the means of consecutive stretches."""
    size = len(stalls) // _BATCHES
    means = [statistics.fmean(stalls[i * size : (i + 1) * size]) for i in range(_BATCHES)]
    return statistics.stdev(means) / math.sqrt(_BATCHES)
