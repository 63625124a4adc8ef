# SPDX-License-Identifier: Apache-2.0
"""The row ids of a server's steps, as recorded sessions ask for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.characterize.lookups import session_batches
from slacktier_cli.characterize.schedule import Schedule, interleave
from slacktier_cli.traces import Trace
from slacktier_rowids.models import Hasher

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Half:
    """Steps of one trace.

    rows      [tokens, layers, columns] uint32, tokens in order of use
    decode    [tokens] bool
    steps     [steps + 1]; step i is tokens steps[i] to steps[i + 1], prefill and decode
    """

    name: str
    rows: U32
    decode: npt.NDArray[np.bool_]
    steps: I64

    @property
    def step_count(self) -> int:
        return len(self.steps) - 1

    def __iter__(self) -> Iterator[tuple[U32, U32]]:
        """(prefill rows, decode rows) of each step, [tokens, layers, columns] each."""
        for first, end in zip(self.steps[:-1], self.steps[1:], strict=True):
            rows, decode = self.rows[first:end], self.decode[first:end]
            yield rows[~decode], rows[decode]


def half_of(
    name: str, trace: Trace, hasher: Hasher, *, sessions: int, steps: int, seed: int, advance: Callable[[int], None]
) -> Half:
    """The first `steps` steps with all sessions busy; raises ConfigError for a trace that is too short.

    advance  told how many tokens were hashed
    """
    schedule = interleave(trace, np.arange(trace.session_count), slots=sessions, seed=seed)
    full = schedule.full_steps()
    if full.sum() < steps:
        raise ConfigError(f"{name}: {int(full.sum())} steps with {sessions} sessions at once, expected {steps}")
    last = int(np.flatnonzero(full)[steps - 1]) + 1
    edges = schedule.steps[: last + 1]
    return Half(name, _rows(trace, hasher, schedule, int(edges[-1]), advance), _decode(trace, schedule, edges), edges)


def _decode(trace: Trace, schedule: Schedule, edges: I64) -> npt.NDArray[np.bool_]:
    decode: npt.NDArray[np.bool_] = trace.decode_mask[schedule.order[: edges[-1]]]
    return decode


def _rows(trace: Trace, hasher: Hasher, schedule: Schedule, count: int, advance: Callable[[int], None]) -> U32:
    """Row ids of the first `count` positions of the schedule; only sessions among them are hashed."""
    order = schedule.order[:count]
    place = np.full(len(trace.tokens), -1, np.int64)
    place[order] = np.arange(count)
    layers, orders, heads = hasher.constants.primes.shape
    rows = np.empty((count, layers, orders * heads), np.uint32)
    for first, end in session_batches(trace.session_offsets):
        start, stop = int(trace.session_offsets[first]), int(trace.session_offsets[end])
        at = place[start:stop]
        used = at >= 0
        if used.any():
            ids = hasher.packed(trace.tokens[start:stop], trace.session_offsets[first : end + 1] - start)
            rows[at[used]] = ids[used]
        advance(stop - start)
    return rows
