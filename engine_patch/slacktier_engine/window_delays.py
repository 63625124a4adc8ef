# SPDX-License-Identifier: Apache-2.0
"""Injected delays for the window probe (slacktier.window_probe): any model, one captured graph for all of them.

    begin   side stream: publish one made-up row id per layer; per layer in order: wait for its flag, take it down
    reach   main stream, before a decoder layer: wait for that layer's flag

The CPU thread of the step path raises a layer's flag when an emulated device of its own says so: `delay` after the ids
were seen. Delays change between steps; the graph stays. `attach` hooks a model's decoder layers, whatever they do.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch

from slacktier.delay import DELAY_US_MAX, DelayModel
from slacktier.errors import ConfigError
from slacktier.page import RowFormat, State, Superblock
from slacktier_engine.kernels.publish import publish
from slacktier_engine.streams import CudaStreams, HostStreams, StepStreams
from slacktier_native.core import LayerSetup, LookupCore, MemorySpec, set_delay
from slacktier_native.memory_table import MemoryTable
from slacktier_native.step_path import MAIL_BYTES, MAIL_READY, StepMemory, StepPath, StepSettings

LAYERS_MAX: Final = 64  # ST_LAYERS_MAX
_ROWS: Final = 16
_ANSWER_BYTES: Final = 1024  # of one lookup and its row of 16 bytes; a cache line's multiple


def _table() -> MemoryTable:
    sb = Superblock(
        table_uuid=uuid.UUID(int=0x9B0BE), layer_id=0, epoch=1, row_count=_ROWS, payload_bytes=16, scale_bytes=0,
        row_format=RowFormat.BF16, model="window probe", revision="", source="zeros",
    )  # fmt: skip
    sb = replace(sb, state=State.COMPLETE, staged_pages=sb.page_count)
    return MemoryTable(sb, np.zeros((_ROWS, 16), np.uint8), np.zeros((_ROWS, 0), np.uint8), threads=1)


class WindowDelays:
    """layer_ids in order of use; device_prefix names the emulated devices: one instance per prefix on a machine."""

    def __init__(
        self, layer_ids: Sequence[int], *, device: torch.device | str = "cuda", device_prefix: str = "probe",
        timeout_s: float = 10.0,
    ) -> None:  # fmt: skip
        if not 0 < len(layer_ids) <= LAYERS_MAX:
            raise ConfigError(f"window probe of {len(layer_ids)} layers, expected 1 to {LAYERS_MAX}")
        self.layer_ids = tuple(layer_ids)
        self._devices = [f"{device_prefix}-{layer_id}" for layer_id in layer_ids]
        target = torch.device(device)
        self._streams: StepStreams = CudaStreams(target) if target.type == "cuda" else HostStreams()
        self._table = _table()
        layers = [
            LayerSetup(layer_id, (MemorySpec(self._table, name, DelayModel(name, 0, 0, 0)),))
            for layer_id, name in zip(layer_ids, self._devices, strict=True)
        ]
        self.core = LookupCore(layers, lookups_max=1, io_threads=1, backend="posix", spin_us=50_000)
        count = len(layer_ids)
        self._mail = self._streams.alloc(MAIL_BYTES * count)
        self._ids = self._streams.alloc(64 * count)
        self._answers = self._streams.alloc(_ANSWER_BYTES * count)
        line_bytes = self.core.superblock(0).record_bytes
        memory = [
            StepMemory(self._mail + MAIL_BYTES * k, self._ids + 64 * k, self._answers + _ANSWER_BYTES * k, line_bytes)
            for k in range(count)
        ]
        self._path = StepPath(self.core, memory, StepSettings(timeout_s=timeout_s))
        self._step = torch.zeros(1, dtype=torch.int64, device=target)
        self._row_ids = torch.zeros((1, count, 1), dtype=torch.int64, device=target)
        self._marks: list[object] = []
        self._hooks: list[Any] = []

    def begin(self) -> None:
        """A step starts; captured or eager."""
        self._streams.fork()
        with self._streams.side():
            publish(
                self._row_ids, None, self._step, host_ids=self._ids, host_ids_bytes=64, mail=self._mail,
                mail_bytes=MAIL_BYTES, lookups_max=1,
            )  # fmt: skip
            self._marks = [self._wait(k) for k in range(len(self.layer_ids))]

    def _wait(self, index: int) -> object:
        flag = self._mail + MAIL_BYTES * index + MAIL_READY
        self._streams.wait_flag(flag)
        self._streams.lower_flag(flag)
        return self._streams.mark()

    def reach(self, index: int) -> None:
        """The step has come to this layer."""
        self._streams.join(self._marks[index])

    def arm(self) -> None:
        """Before a replay."""
        self._path.arm()

    def set_delays(self, delays_ms: Mapping[int, float]) -> None:
        """Layer id -> delay from the step's start, from the next step on; 0 for those not named."""
        for layer_id, name in zip(self.layer_ids, self._devices, strict=True):
            delay_us = 1e3 * delays_ms.get(layer_id, 0.0)
            set_delay(name, DelayModel(name, min(delay_us, DELAY_US_MAX), 0.0, 0.0))

    def attach(self, layers: Sequence[torch.nn.Module]) -> None:
        """Hook a model's decoder layers, by their place in the model; before its graphs are captured."""
        first = layers[0].register_forward_pre_hook(lambda *_: self.begin())
        reached = [
            layers[layer_id].register_forward_pre_hook(lambda *_, index=index: self.reach(index))
            for index, layer_id in enumerate(self.layer_ids)
        ]
        last = layers[-1].register_forward_hook(lambda *_: self.reach(len(self.layer_ids) - 1))
        self._hooks += [first, *reached, last]

    def check(self) -> None:
        """Raise what a step failed with: a delay beyond the time-out, say."""
        self._path.check()

    def close(self) -> None:
        """Unhook and free; the device must be idle, and graphs that were captured meanwhile are not to be replayed."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._path.close()
        self.core.close()
        for address in (self._mail, self._ids, self._answers):
            self._streams.free(address)
