# SPDX-License-Identifier: Apache-2.0
"""The step's compute: 40 layers of real GEMMs that stream weights from device memory.

A GEMM is [tokens, 7168] x [7168, 7168] in bf16: 103 MB of weights, so no two in a row share the L2. How many a
layer gets follows from the windows asked for and from the time that one takes here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from slacktier_engine.decode_bench.device import Device

LAYERS: Final = 40
LOOKUP_LAYERS: Final = (1, 14)
_WIDTH: Final = 7168
_WEIGHTS: Final = 48  # 5 GB
_TIMED: Final = 96


@dataclass(frozen=True)
class LayerCounts:
    """GEMMs of layer 0, of each layer up to 13, and of each later one."""

    first: int
    middle: int
    last: int

    def of(self, layer: int) -> int:
        if layer == 0:
            return self.first
        return self.middle if layer < LOOKUP_LAYERS[1] else self.last


class Compute:
    """Weights once, activations per batch size."""

    def __init__(self, device: Device, width: int = _WIDTH, weights: int = _WEIGHTS) -> None:
        self.device, self._width = device, width
        self._weights = [self._signs(width) * 2**-6 for _ in range(weights)]
        self._next = 0

    def _signs(self, rows: int) -> torch.Tensor:
        """+-1 at random: products that take little power, so that the clock stays where it is over long steps."""
        shape = (rows, self._width)
        return torch.randint(0, 2, shape, device=self.device.torch).mul_(2).sub_(1).to(torch.bfloat16)

    def activations(self, tokens: int) -> list[torch.Tensor]:
        """Input, and two outputs that take turns."""
        return [self._signs(tokens) for _ in range(3)]

    def start(self) -> None:
        self._next = 0

    def run(self, x: list[torch.Tensor], count: int) -> None:
        """Queue `count` GEMMs on the current stream."""
        for _ in range(count):
            torch.mm(x[0], self._weights[self._next % len(self._weights)], out=x[1 + (self._next + 1) % 2])
            self._next += 1

    def time_ms(self, x: list[torch.Tensor], count: int, repeats: int = 5) -> float:
        """Median time of `count` GEMMs in a graph."""

        def queue() -> None:
            self.start()
            self.run(x, count)

        graph = self.device.capture(queue, warm_ups=1)
        times: list[float] = []
        for _ in range(repeats):
            begin = self.device.instant()
            graph.replay()
            end = self.device.instant()
            self.device.reach(end)
            times.append(self.device.elapsed_us(begin, end) / 1e3)
        return sorted(times)[repeats // 2]

    def counts_for(self, x: list[torch.Tensor], window_ms: tuple[float, float], step_ms: float) -> LayerCounts:
        """How many GEMMs make these windows and this step, at this batch size."""
        one_ms = self.time_ms(x, _TIMED) / _TIMED
        middle_layers, last_layers = LOOKUP_LAYERS[1] - 1, LAYERS - LOOKUP_LAYERS[1]

        def count(span_ms: float) -> int:
            return max(1, round(span_ms / one_ms))

        return LayerCounts(
            count(window_ms[0]),
            count((window_ms[1] - window_ms[0]) / middle_layers),
            count((step_ms - window_ms[1]) / last_layers),
        )

    def windows_ms(self, x: list[torch.Tensor], counts: LayerCounts) -> tuple[float, float]:
        """Measured compute before layers 1 and 14."""
        before_second = sum(counts.of(layer) for layer in range(LOOKUP_LAYERS[1]))
        return self.time_ms(x, counts.first), self.time_ms(x, before_second)
