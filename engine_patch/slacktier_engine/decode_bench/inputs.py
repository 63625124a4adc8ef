# SPDX-License-Identifier: Apache-2.0
"""What a step is fed: tokens, positions and look-back of each slot, on the device before the timing starts."""

from __future__ import annotations

import numpy as np
import torch

from slacktier_engine.decode_bench.stock import StockKernels
from slacktier_engine.decode_bench.workload import BEFORE_START, Positions, TokenStream
from slacktier_rowids.engram import EngramHasher


class StepInputs:
    """Buffers that every arm's graph reads, and the steps that are copied into them."""

    def __init__(self, stream: TokenStream, decode: Positions, lookback: int, device: torch.device) -> None:
        windows = stream.windows(decode.ravel(), lookback + 1).reshape(*decode.shape, lookback + 1)
        history = np.where(windows[..., :-1] == BEFORE_START, 0, windows[..., :-1]).astype(np.int32)
        self._tokens = torch.from_numpy(np.ascontiguousarray(windows[..., -1])).to(device)
        self._history = torch.from_numpy(np.ascontiguousarray(history)).to(device)
        self._positions = torch.from_numpy(decode - stream.starts[decode]).to(device)
        self.tokens = torch.empty_like(self._tokens[0])
        self.history = torch.empty_like(self._history[0])
        self.positions = torch.empty_like(self._positions[0])
        self.load(0)

    def load(self, step: int) -> None:
        self.tokens.copy_(self._tokens[step])
        self.history.copy_(self._history[step])
        self.positions.copy_(self._positions[step])


def step_ids(stock: StockKernels, inputs: StepInputs, row_count: int) -> torch.Tensor:
    """The step's row ids by the engine's hash kernel, folded into the table: [T, L, C] int64."""
    return torch.remainder(stock.hash(inputs.tokens, inputs.positions, inputs.history), row_count)


def chunk_ids(hasher: EngramHasher, stream: TokenStream, positions: Positions, row_count: int) -> torch.Tensor:
    """Row ids of a prefill chunk by our own hasher, folded: [T, L, C] int64, on the host."""
    recent = stream.windows(positions, hasher.ngram_size)
    return torch.from_numpy(np.ascontiguousarray(hasher.step(recent) % row_count))
