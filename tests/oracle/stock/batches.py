# SPDX-License-Identifier: Apache-2.0
"""Sequences as an engine feeds them: rounds of a few tokens of each, with request slots, positions and lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class Chunk:
    """Tokens [first, end) of sequence `index`; `at` is where its first token stands among all tokens."""

    index: int
    first: int
    end: int
    at: int


def rounds(offsets: list[int], size: int) -> Iterator[list[Chunk]]:
    """Every sequence's next `size` tokens (the last may be fewer), until all are used up."""
    starts, lengths = offsets[:-1], [end - first for first, end in pairwise(offsets)]
    for first in range(0, max(lengths), size):
        yield [
            Chunk(index, first, min(first + size, length), starts[index] + first)
            for index, length in enumerate(lengths)
            if first < length
        ]


def forward_batch(mode: Any, chunks: list[Chunk], slots: torch.Tensor) -> SimpleNamespace:
    """What the hash code reads of a ForwardBatch."""
    lengths = torch.tensor([chunk.end - chunk.first for chunk in chunks])
    return SimpleNamespace(
        forward_mode=mode,
        _original_forward_mode=None,
        positions=torch.cat([torch.arange(chunk.first, chunk.end) for chunk in chunks]),
        req_pool_indices=slots[[chunk.index for chunk in chunks]],
        extend_seq_lens=lengths,
        extend_seq_lens_cpu=lengths.tolist(),
        extend_start_loc=torch.cumsum(lengths, 0) - lengths,
        out_cache_loc=torch.arange(1, int(lengths.sum()) + 1),
        engram_history=None,
        global_num_token_non_padded_cpu=None,
        tbo_parent_token_range=None,
        spec_algorithm=None,
        spec_info=None,
        mamba_track_indices=None,
        mamba_track_mask=None,
    )


def run(
    tokens: torch.Tensor,
    offsets: list[int],
    size: int,
    step: Callable[[torch.Tensor, list[Chunk]], torch.Tensor],
) -> torch.Tensor:
    """Row ids of all tokens in their own order, from `step` on each round's tokens."""
    rows: list[torch.Tensor] = [torch.empty(0)] * len(tokens)
    for chunks in rounds(offsets, size):
        where = [at for chunk in chunks for at in range(chunk.at, chunk.at + chunk.end - chunk.first)]
        for at, row in zip(where, step(tokens[where], chunks), strict=True):
            rows[at] = row
    return torch.stack(rows)
