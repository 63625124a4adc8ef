# SPDX-License-Identifier: Apache-2.0
"""The step path without a GPU: one C call starts a step's reads, join() waits, gathers and dequantizes.

Neighbours: step_path.py says what the engine's hooks expect; slacktier_native.core does the lookups.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from slacktier.errors import ConfigError, TierUnavailableError
from slacktier_engine.step_path import Dequantize, Phase, StepObserver, view_rows
from slacktier_native.core import LookupCore, RowIds

_EMPTY: Final = np.empty(0, np.int64)
_BUSY_POLL_S: Final = 0.001


def begin_when_free(core: LookupCore, ids: Sequence[RowIds], timeout_s: float = 30.0) -> None:
    """begin(), once reads that a step which failed had left behind are back; raises what begin() does by then."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            core.begin(ids)
        except TierUnavailableError as exc:
            if exc.errno != errno.EBUSY or time.monotonic() > until_s:
                raise
            time.sleep(_BUSY_POLL_S)
        else:
            return


class CpuStepPath:
    """One thread drives it; between_steps() may be entered from others.

    dequantize  per layer, in the core's order
    observer    hears of each layer's lookup
    """

    def __init__(self, core: LookupCore, dequantize: Sequence[Dequantize], observer: StepObserver) -> None:
        self.core = core
        self._dequantize = dequantize
        self._observer = observer
        self._ids: list[RowIds] = []
        self._phase = Phase.DECODE
        self._waiting = 0  # layers of the open step that were not joined yet
        self._cut = False
        self._steps = threading.Lock()  # held while a step is open, which is while there are ids
        self._rows = [np.empty((0, core.row_bytes(k)), np.uint8) for k in range(len(core.layer_ids))]

    def issue(self, row_ids: torch.Tensor, live: torch.Tensor | None = None, phase: Phase = Phase.DECODE) -> None:
        """Start the step's reads. A step that was left open, because its forward failed, ends here."""
        self._end()
        ids = row_ids.numpy()
        if live is not None:
            ids = np.where((live != 0).numpy()[: len(ids), None, None], ids, -1)
        layers = [np.ascontiguousarray(ids[:, k]).reshape(-1) for k in range(ids.shape[1])]
        self._steps.acquire()
        self._ids, self._phase, self._waiting = layers, phase, len(layers)
        # A step larger than one pass takes (a prefill without chunks) is read layer by layer when it is needed.
        self._cut = max(len(one) for one in layers) > self.core.lookups_max
        if not self._cut:
            self._begin(layers)

    def _begin(self, ids: Sequence[RowIds]) -> None:
        try:
            begin_when_free(self.core, ids)
        except BaseException:
            self._end()
            raise

    def join(self, layer_index: int, out: torch.Tensor) -> None:
        if not self._waiting:
            raise ConfigError(f"layer {self.core.layer_ids[layer_index]}: rows wanted of a step that was not issued")
        ids = self._ids[layer_index]
        if out.shape[0] != len(ids):
            raise ConfigError(
                f"layer {self.core.layer_ids[layer_index]}: room for {out.shape[0]} rows, the step has {len(ids)}"
            )
        try:
            if self._cut:
                self._join_cut(layer_index, out)
            else:
                self._gather(layer_index, out)
        except BaseException:
            self._end()
            raise
        self._waiting -= 1
        if not self._waiting:
            self._end()

    def _join_cut(self, layer_index: int, out: torch.Tensor) -> None:
        ids, most = self._ids[layer_index], self.core.lookups_max
        for first in range(0, len(ids), most):
            part = [_EMPTY] * len(self._ids)
            part[layer_index] = ids[first : first + most]
            begin_when_free(self.core, part)
            self._gather(layer_index, out[first : first + most])
            self.core.end()

    def _gather(self, layer_index: int, out: torch.Tensor) -> None:
        result = self.core.wait(layer_index)
        rows = self._room(layer_index, out.shape[0])
        self.core.gather(layer_index, rows)
        payload, scales = view_rows(rows, self.core.superblock(layer_index).payload_bytes)
        out.copy_(self._dequantize[layer_index](payload, scales))
        self._observer.layer_done(self.core.layer_ids[layer_index], self._phase, result)

    def _room(self, layer_index: int, count: int) -> npt.NDArray[np.uint8]:
        """The layer's gather buffer; grows to the largest step seen."""
        if len(self._rows[layer_index]) < count:
            self._rows[layer_index] = np.empty((count, self.core.row_bytes(layer_index)), np.uint8)
        return self._rows[layer_index][:count]

    def _end(self) -> None:
        if self._ids:
            self.core.end()
            self._ids, self._waiting = [], 0
            self._steps.release()

    def arm(self) -> None:
        """Nothing to wake: the caller's thread looks ids up itself."""

    def check(self) -> None:
        """Nothing to say: join() has raised already."""

    @contextmanager
    def between_steps(self, timeout_s: float = 30.0) -> Iterator[LookupCore]:
        if not self._steps.acquire(timeout=timeout_s):
            raise ConfigError(f"a step has been open for {timeout_s:g} s; nothing was changed")
        try:
            yield self.core
        finally:
            self._steps.release()

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        with self.between_steps() as core:
            core.set_cache_rows(layer_index, rows)

    def close(self) -> None:
        self._end()
        self.core.close()
