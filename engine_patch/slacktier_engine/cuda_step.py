# SPDX-License-Identifier: Apache-2.0
"""The GPU's step path behind the seam of step_path.py: buffers reserved at start, host work outside any graph.

Neighbours: step.py owns the memory, the kernels and the CPU thread. What a captured step cannot do in Python (count,
raise) is read from the thread's records and status between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from slacktier.errors import ConfigError
from slacktier_engine.step import GpuStepPath
from slacktier_engine.step_path import Phase, TableShape
from slacktier_native.core import LookupCore
from slacktier_native.step_path import StepSettings

_NO_SCALES = 0


class CudaStepPath:
    """Adapts GpuStepPath: rows without scales arrive as bytes, and become bf16 in the engine's own way."""

    def __init__(
        self, core: LookupCore, tables: Sequence[TableShape], cache_rows_max: Sequence[int], device: torch.device,
        timeout_s: float,
    ) -> None:  # fmt: skip
        self.core = core
        self._tables = tables
        self._path = GpuStepPath(
            core, cache_rows_max=cache_rows_max, columns=tables[0].columns,
            settings=StepSettings(timeout_s=timeout_s), device=device,
        )  # fmt: skip

    def issue(self, row_ids: torch.Tensor, live: torch.Tensor | None = None, phase: Phase = Phase.DECODE) -> None:
        lookups = row_ids.shape[0] * row_ids.shape[2]
        if lookups > self.core.lookups_max:
            raise ConfigError(
                f"a step of {lookups} lookups per layer, room for {self.core.lookups_max}",
                hint="raise lookups_max, or lower --chunked-prefill-size",
            )
        self._path.issue(row_ids, live)

    def join(self, layer_index: int, out: torch.Tensor) -> None:
        sb = self.core.superblock(layer_index)
        if sb.scale_bytes != _NO_SCALES:
            self._path.join(layer_index, out)
            return
        raw = torch.empty((out.shape[0], sb.row_bytes), dtype=torch.uint8, device=out.device)
        self._path.join(layer_index, raw)
        values = torch.float8_e4m3fn if sb.row_bytes == self._tables[layer_index].dim else torch.bfloat16
        out.copy_(raw.view(values))

    def arm(self) -> None:
        self._path.arm()

    def check(self) -> None:
        self._path.check()

    @contextmanager
    def between_steps(self) -> Iterator[LookupCore]:
        with self._path.between_steps() as core:
            yield core

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        self._path.set_cache_rows(layer_index, rows)

    def close(self) -> None:
        self._path.close()
