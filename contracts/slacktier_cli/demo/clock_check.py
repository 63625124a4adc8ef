# SPDX-License-Identifier: Apache-2.0
"""Holds the row cache's hit rates of one block against a plain CLOCK simulation of the same lookups.

Input: the server's recording of its lookups (.npz): step_number [S], step_is_prefill [S], and for each layer L
rows_L [N] row ids in the order asked for, offsets_L [S+1], cache_rows_L [S], hits_L [S], repeats_L [S].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import SlackTierError
from slacktier_cli.demo.clock import ClockCache

AGREEMENT_POINTS: Final = 1.0


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """One layer of one block: hit rates in [0, 1] of the same lookups, prefill and decode together.

    hit_rate        the native cache's: (hits + repeats) / lookups
    clock_hit_rate  the simulation's, from a cold start with the same number of rows
    decode_...      the same over the decode steps alone; None if the block had none
    """

    lookups: int
    cache_rows: int
    hit_rate: float
    clock_hit_rate: float
    decode_hit_rate: float | None
    decode_clock_hit_rate: float | None

    @property
    def difference_points(self) -> float:
        """Native minus simulated, in percentage points."""
        return 100 * (self.hit_rate - self.clock_hit_rate)

    @property
    def agrees(self) -> bool:
        return abs(self.difference_points) <= AGREEMENT_POINTS


class LookupRecording:
    """The server's recording, read whole."""

    def __init__(self, path: Path) -> None:
        """Raises SlackTierError if the file is not there or lacks an array."""
        self.path = path
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                self._arrays: Mapping[str, npt.NDArray[Any]] = {name: archive[name] for name in archive.files}
        except (OSError, ValueError) as exc:
            raise SlackTierError(f"{path}: recorded lookups cannot be read: {exc}") from exc

    def _array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            raise SlackTierError(f"{self.path}: recorded lookups without {name}")
        return self._arrays[name]

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(int(layer) for layer in self._array("layer_ids"))

    def steps(self, first: int, end: int) -> npt.NDArray[np.int64]:
        """Positions in the recording of the steps numbered [first, end)."""
        numbers = self._array("step_number")
        return np.flatnonzero((numbers >= first) & (numbers < end))

    def check(self, layer_id: int, first: int, end: int) -> ClockCheck:
        """Simulate the steps numbered [first, end) of one layer; the first of them met a cold cache.

        raises  SlackTierError if none of them was recorded, or the cache changed its size between them
        """
        steps = self.steps(first, end)
        sizes = np.unique(self._array(f"cache_rows_{layer_id}")[steps])
        if sizes.size != 1:
            raise SlackTierError(
                f"{self.path}: layer {layer_id}, steps {first} to {end}: cache sizes {sizes.tolist()}, expected one"
            )
        is_decode = self._array("step_is_prefill")[steps] == 0
        native = (self._array(f"hits_{layer_id}") + self._array(f"repeats_{layer_id}"))[steps]
        lookups, simulated = self._simulate(layer_id, steps, int(sizes[0]))
        return ClockCheck(
            lookups=int(lookups.sum()),
            cache_rows=int(sizes[0]),
            hit_rate=_rate(native, lookups),
            clock_hit_rate=_rate(simulated, lookups),
            decode_hit_rate=_rate(native[is_decode], lookups[is_decode]) if is_decode.any() else None,
            decode_clock_hit_rate=_rate(simulated[is_decode], lookups[is_decode]) if is_decode.any() else None,
        )

    def _simulate(
        self, layer_id: int, steps: npt.NDArray[np.int64], cache_rows: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Lookups and CLOCK hits of each step."""
        rows, offsets = self._array(f"rows_{layer_id}"), self._array(f"offsets_{layer_id}")
        cache = ClockCache(cache_rows)
        hits = [cache.step(rows[offsets[step] : offsets[step + 1]].tolist()) for step in steps]
        return offsets[steps + 1] - offsets[steps], np.array(hits, np.int64)


def _rate(hits: npt.NDArray[np.int64], lookups: npt.NDArray[np.int64]) -> float:
    total = int(lookups.sum())
    return float(hits.sum()) / total if total else 0.0
