# SPDX-License-Identifier: Apache-2.0
"""One step on the clock: real lookups at its start, compute replaced by waiting, stalls where rows come late.

The step's timeline follows the window rule: layer k needs its rows at t0 + W_k + (stalls before it); if they arrive
later, everything after is later by as much. When rows arrived is the core's own timestamp, so that a late wake-up of
this process is no stall. What the process itself loses (it woke late, the check took longer than the compute that
hides it) is the overrun; later steps give it back, so that a step costs compute + stalls and nothing of Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slacktier.errors import SlackTierError, TierError
from slacktier_emulated.clock import Clock
from slacktier_emulated.core_api import Bytes, Core, Ids
from slacktier_emulated.profile import StepTimes
from slacktier_native.pages import pattern_check


class RowMismatchError(SlackTierError):
    """Rows came with the right tag and checksum and are still not the table's."""

    def __init__(self, message: str, mismatched: int) -> None:
        super().__init__(message, hint="stage the table again")
        self.mismatched = mismatched


class LookupFailedError(SlackTierError):
    """A step's rows could not be had, or were not the table's: nothing may be computed from them.

    faults  layer_id -> what was wrong there
    """

    def __init__(self, faults: dict[int, SlackTierError]) -> None:
        super().__init__("; ".join(_naming_layer(layer_id, str(exc)) for layer_id, exc in faults.items()))
        self.faults = faults

    @property
    def reasons(self) -> dict[int, str]:
        """layer_id -> CamelCase reason, as a metric's label"""
        return {layer_id: reason(exc) for layer_id, exc in self.faults.items()}

    @property
    def mismatched(self) -> dict[int, int]:
        """layer_id -> rows that differed from the test pattern"""
        return {k: exc.mismatched for k, exc in self.faults.items() if isinstance(exc, RowMismatchError)}


def _naming_layer(layer_id: int, message: str) -> str:
    """The core names the layer where it knows it; once is enough."""
    return message if re.match(rf"layer {layer_id}\b", message) else f"layer {layer_id}: {message}"


@dataclass(slots=True)
class LayerTable:
    """What stays the same about a layer between control calls.

    pattern_seed  seed of the test pattern that its rows follow; None: the bytes are the checkpoint's own, unchecked
    """

    layer_id: int
    payload_bytes: int
    scale_bytes: int
    pattern_seed: int | None
    tier: str

    @property
    def row_bytes(self) -> int:
        return self.payload_bytes + self.scale_bytes


@dataclass(frozen=True, slots=True)
class LayerRecord:
    """One layer's part of one step; read_us is the window rule's T, stall_us its d."""

    window_us: float
    read_us: float
    stall_us: float
    owned: int
    hits: int
    repeats: int
    misses: int
    pages: int
    checked: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step that worked.

    planned_end_ns  begin + compute + stalls, less what earlier steps overran
    end_ns          when it ends: as planned, but not before its last layer had its rows
    """

    begin_ns: int
    planned_end_ns: int
    end_ns: int
    layers: tuple[LayerRecord, ...]


class StepRunner:
    """Runs steps through a core, for one rank of tp."""

    def __init__(self, core: Core, layers: Sequence[LayerTable], *, rank: int, tp: int, clock: Clock) -> None:
        self.core = core
        self.layers = list(layers)
        self._rank = rank
        self._tp = tp
        self._clock = clock
        self._rows: Bytes = np.empty(0, np.uint8)

    def run(
        self, row_ids: Sequence[Ids], times: StepTimes, *, owed_ns: int = 0, on_begun: Callable[[], None] | None = None
    ) -> StepRecord:
        """All lookups of one step; returns when the last layer's rows are checked, before the step's end.

        row_ids   one 1-D array per layer, ids of all ranks
        owed_ns   what earlier steps overran; taken off the compute after the last layer
        on_begun  called as soon as the reads are on their way
        raises    LookupFailedError if any layer's rows did not come or are wrong; the core is ready for the next step
        """
        begin_ns = self._clock.now_ns()
        try:
            self.core.begin(row_ids)
        except SlackTierError as exc:
            raise LookupFailedError({table.layer_id: exc for table in self.layers}) from exc
        if on_begun is not None:
            on_begun()
        faults: dict[int, SlackTierError] = {}
        records: list[LayerRecord] = []
        shift_ns = 0
        for index, (table, window_ms) in enumerate(zip(self.layers, times.windows_ms, strict=True)):
            window_ns = int(window_ms * 1e6)
            self._clock.sleep_until(begin_ns + window_ns + shift_ns)
            try:
                record = self._layer(index, table, row_ids[index], window_ns, shift_ns)
            except SlackTierError as exc:
                faults[table.layer_id] = exc
                continue
            shift_ns += int(record.stall_us * 1000)
            records.append(record)
        self.core.end()
        if faults:
            raise LookupFailedError(faults)
        last_needed_ns = begin_ns + shift_ns + int(times.windows_ms[-1] * 1e6)
        planned_ns = begin_ns + shift_ns + int(times.step_ms * 1e6) - owed_ns
        return StepRecord(begin_ns, planned_ns, max(planned_ns, last_needed_ns), tuple(records))

    def _layer(self, index: int, table: LayerTable, row_ids: Ids, window_ns: int, shift_ns: int) -> LayerRecord:
        """Wait for one layer's rows, gather and check them."""
        outcome = self.core.wait(index)
        late_ns = int(outcome.arrived_us * 1000) - window_ns - shift_ns
        rows = self._gather(index, table, len(row_ids))
        return LayerRecord(
            window_us=window_ns / 1000,
            read_us=outcome.read_us,
            stall_us=max(0, late_ns) / 1000,
            owned=outcome.owned,
            hits=outcome.hits,
            repeats=outcome.repeats,
            misses=outcome.misses,
            pages=outcome.pages,
            checked=self._check(table, row_ids, rows, outcome.owned),
        )

    def _gather(self, index: int, table: LayerTable, count: int) -> Bytes:
        if self._rows.size < count * table.row_bytes:
            self._rows = np.empty(count * table.row_bytes, np.uint8)
        rows = self._rows[: count * table.row_bytes].reshape(count, table.row_bytes)
        self.core.gather(index, rows)
        return rows

    def _check(self, table: LayerTable, row_ids: Ids, rows: Bytes, owned: int) -> int:
        """Compare every row with the test pattern; returns how many of this rank's rows were compared."""
        if table.pattern_seed is None:
            return 0
        ids = row_ids if self._tp == 1 else np.where(row_ids % self._tp == self._rank, row_ids, -1)
        bad, first = pattern_check(table.pattern_seed, ids, rows, table.payload_bytes, table.scale_bytes)
        if bad:
            raise RowMismatchError(
                f"{bad} of {owned} rows differ from the test pattern; the first is row {int(row_ids[first])}", bad
            )
        return owned


def reason(exc: SlackTierError) -> str:
    """The error's class as a metric label: TierUnavailable, RowMismatch, Contract."""
    name = type(exc).__name__.removesuffix("Error")
    return f"{name}Errno{exc.errno}" if isinstance(exc, TierError) and exc.errno else name
