# SPDX-License-Identifier: Apache-2.0
"""The online cache split in the engine: decode steps' stalls in, cache rows per layer out; prefill does not count."""

from __future__ import annotations

from collections.abc import Mapping

from slacktier.errors import ConfigError
from slacktier.split_controller import SplitController, SplitSettings
from slacktier_emulated.scheduler import Phase
from slacktier_emulated.step import StepRecord


class MovingSplit:
    """Moves rows between layers from a split on; whoever changes a cache's size by hand makes a new one.

    rows    cache rows by layer id
    raises  ConfigError where there is nothing to move
    """

    def __init__(self, rows: Mapping[int, int], settings: SplitSettings | None = None) -> None:
        if len(rows) < 2 or not any(rows.values()):
            raise ConfigError(
                f"online split of {dict(rows)} cache rows: expected two layers or more, and rows to move",
                hint="give the layers cache rows",
            )
        self.moves = 0
        self._controller = SplitController(rows, settings or SplitSettings())

    def observe(self, phase: Phase, record: StepRecord) -> Mapping[int, int] | None:
        """One step; the rows per layer id if they are to change now."""
        if phase is not Phase.DECODE:
            return None
        rows = self._controller.observe(sum(layer.stall_us for layer in record.layers) / 1000)
        if rows is not None:
            self.moves += 1
        return rows
