# SPDX-License-Identifier: Apache-2.0
"""The step path of one rank on a GPU: row ids on the device in, rows on the device out, no host work inside a graph.

    issue   fork to the side stream: publish ids -> [CPU thread and readers] -> wait -> copy the answer -> fill,
            per layer in order
    join    main stream: wait for the layer's fill, gather from device memory

Both may be captured; a replay needs the same memory and nothing else. Steps of one path follow each other on the
caller's stream: issue() of a step must be ordered after the last join() of the one before it.

Device memory of a layer: the row cache, payload [slots, P] and scales [slots, S]; for the step in progress places
[lookups_max] int32 and the answer, in which rows stay that found their set full. Pinned memory of a layer: a mail box,
ids and the answer (st_step_path.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from slacktier.errors import ConfigError
from slacktier_engine.kernels.fill import fill
from slacktier_engine.kernels.gather import gather_copy, gather_dequant
from slacktier_engine.kernels.publish import publish
from slacktier_engine.streams import CudaStreams, HostStreams, StepStreams
from slacktier_native.core import LookupCore
from slacktier_native.step_path import (
    MAIL_BYTES,
    MAIL_READY,
    StepMemory,
    StepPath,
    StepSettings,
    StepStatus,
    answer_lines,
)

_WAYS: Final = 16  # a directory set: capacities are multiples of it
# Lookups of a step from which on half the room for lines is copied: a prefill chunk repeats rows.
_CHUNK_LOOKUPS: Final = 16384


def _aligned(byte_count: int) -> int:
    return -(-byte_count // 64) * 64


@dataclass(frozen=True)
class _LayerRows:
    """A layer's device memory."""

    payload: torch.Tensor
    scales: torch.Tensor
    places: torch.Tensor
    answer: torch.Tensor

    @property
    def slots(self) -> int:
        return int(self.payload.shape[0])


class GpuStepPath:
    """Lookups of one rank for decode, verify and extend steps.

    core            its lookups_max bounds a step's lookups per layer; its cache_rows are the row cache's
    cache_rows_max  per layer: what set_cache_rows may grow to; reserved now, so that the engine's accounting sees it
    columns         row ids per token and layer
    """

    def __init__(
        self,
        core: LookupCore,
        *,
        cache_rows_max: Sequence[int],
        columns: int,
        settings: StepSettings = StepSettings(),  # noqa: B008 -- frozen
        device: torch.device | str = "cuda",
    ) -> None:
        if len(cache_rows_max) != len(core.layer_ids):
            raise ConfigError(f"cache of {len(cache_rows_max)} layers, the core has {len(core.layer_ids)}")
        self.core = core
        self.columns = columns
        self._device = torch.device(device)
        self._streams: StepStreams = CudaStreams(self._device) if self._device.type == "cuda" else HostStreams()
        lookups = core.lookups_max
        self._ids_bytes = _aligned(8 * lookups)
        self._step = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._rows = [self._layer_rows(k, rows) for k, rows in enumerate(cache_rows_max)]
        self._mail = self._streams.alloc(_aligned(MAIL_BYTES) * len(self._rows))
        self._ids = self._streams.alloc(self._ids_bytes * len(self._rows))
        self._memory = [self._layer_memory(k) for k in range(len(self._rows))]
        self._path = StepPath(core, self._memory, settings)
        self._marks: list[object] = []
        self._lookups = 0

    def _layer_rows(self, layer_index: int, cache_rows_max: int) -> _LayerRows:
        sb = self.core.superblock(layer_index)
        slots = -(-cache_rows_max // _WAYS) * _WAYS
        return _LayerRows(
            torch.empty((slots, sb.payload_bytes), dtype=torch.uint8, device=self._device),
            torch.empty((slots, sb.scale_bytes), dtype=torch.uint8, device=self._device),
            torch.full((self.core.lookups_max,), -2, dtype=torch.int32, device=self._device),
            torch.empty(self._answer_bytes(sb.record_bytes), dtype=torch.uint8, device=self._device),
        )

    def _answer_bytes(self, line_bytes: int) -> int:
        return _aligned(answer_lines(self.core.lookups_max) + line_bytes * self.core.lookups_max)

    def _layer_memory(self, layer_index: int) -> StepMemory:
        line_bytes = self.core.superblock(layer_index).record_bytes
        return StepMemory(
            mail=self._mail + MAIL_BYTES * layer_index,
            row_ids=self._ids + self._ids_bytes * layer_index,
            answer=self._streams.alloc(self._answer_bytes(line_bytes)),
            line_bytes=line_bytes,
        )

    @property
    def cache_bytes(self) -> int:
        """Device memory of the row cache, as reserved."""
        return sum(int(r.payload.nbytes + r.scales.nbytes) for r in self._rows)

    @property
    def device_bytes(self) -> int:
        """Device memory held: the row cache, and what a step of lookups_max needs while it runs."""
        return self.cache_bytes + sum(int(r.places.nbytes + r.answer.nbytes) for r in self._rows)

    @property
    def pinned_bytes(self) -> int:
        """Pinned host memory held."""
        return sum(MAIL_BYTES + self._ids_bytes + self._answer_bytes(m.line_bytes) for m in self._memory)

    def issue(self, row_ids: torch.Tensor, live: torch.Tensor | None = None) -> None:
        """Start a step's lookups of all layers; captured or eager, never blocks.

        row_ids  [T, L, C] int64 on the device
        live     [T] integers on the device, 0 for graph padding, or None
        """
        if row_ids.shape[1:] != (len(self._rows), self.columns):
            raise ConfigError(
                f"row ids of {tuple(row_ids.shape)}, expected [tokens, {len(self._rows)}, {self.columns}]"
            )
        self._lookups = row_ids.shape[0] * self.columns
        self._streams.fork()
        with self._streams.side():
            publish(
                row_ids, live, self._step, host_ids=self._ids, host_ids_bytes=self._ids_bytes,
                mail=self._mail, mail_bytes=MAIL_BYTES, lookups_max=self.core.lookups_max,
            )  # fmt: skip
            self._marks = [self._fill(k) for k in range(len(self._rows))]

    def _fill(self, layer_index: int) -> object:
        memory, rows = self._memory[layer_index], self._rows[layer_index]
        staged = self._staged_lines()
        self._streams.wait_flag(memory.mail + MAIL_READY)
        self._streams.copy(
            rows.answer.data_ptr(), memory.answer, answer_lines(self._lookups) + staged * memory.line_bytes
        )
        fill(
            rows.places, rows.payload, rows.scales, rows.answer, lookups=self._lookups, staged=staged,
            mail=memory.mail, host_answer=memory.answer, line_bytes=memory.line_bytes,
        )  # fmt: skip
        return self._streams.mark()

    def _staged_lines(self) -> int:
        """Lines that the copy brings: a guess, made before there are any. The fill fetches the rest."""
        if self._lookups >= _CHUNK_LOOKUPS:
            return self._lookups // 2 // self.core.tp
        return min(self._lookups, self._lookups * 5 // (4 * self.core.tp) + 16)

    def join(self, layer_index: int, out: torch.Tensor) -> None:
        """The layer's rows into out: [T * C, dim] bf16 for rows with scales, else [T * C, row bytes] uint8.

        Zeros where the id was padding or another rank's; NaN throughout if the step failed (check() says why).
        """
        rows, line_bytes = self._rows[layer_index], self._memory[layer_index].line_bytes
        lines = rows.answer.data_ptr() + answer_lines(self._lookups)
        self._streams.join(self._marks[layer_index])
        if rows.scales.shape[1]:
            gather_dequant(
                rows.places, rows.payload, rows.scales, out, lines=lines, line_bytes=line_bytes, lookups=self._lookups
            )
        else:
            gather_copy(rows.places, rows.payload, out, lines=lines, line_bytes=line_bytes, lookups=self._lookups)

    def arm(self) -> None:
        """Call before a replay: wakes the CPU thread if it sleeps. Late rows are right rows, so it is no condition."""
        self._path.arm()

    def check(self) -> None:
        """Raise what the first failed step since the last check failed with: before a step's output is used."""
        self._path.check()

    def status(self) -> StepStatus:
        return self._path.status()

    def records(self) -> npt.NDArray[np.void]:
        """What the CPU thread saw of the newest steps: slacktier_native.step_path.RECORD."""
        return self._path.records()

    @contextmanager
    def between_steps(self, timeout_s: float = 10.0) -> Iterator[LookupCore]:
        """The core, to change its sources; a step that comes meanwhile waits."""
        with self._path.between_steps(timeout_s) as core:
            yield core

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        """Resize a layer's share between steps, up to its reserved maximum. Its rows are read anew."""
        if rows > self._rows[layer_index].slots:
            raise ConfigError(
                f"cache of {rows} rows for layer {self.core.layer_ids[layer_index]}: "
                f"{self._rows[layer_index].slots} are reserved"
            )
        with self._path.between_steps() as core:
            core.set_cache_rows(layer_index, rows)

    def close(self) -> None:
        """Stop the thread and the core and free the pinned memory; the device must be idle. Idempotent."""
        if not self._memory:
            return
        self._path.close()
        self.core.close()
        for memory in self._memory:
            self._streams.free(memory.answer)
        self._streams.free(self._ids)
        self._streams.free(self._mail)
        self._memory = []
