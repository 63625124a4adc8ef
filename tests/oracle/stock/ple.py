# SPDX-License-Identifier: Apache-2.0
"""Row ids from SGLang's Qwen4ExpNGramEmbedding, through its own batch preparation and history commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from batches import Chunk, forward_batch, run
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.models import qwen4_exp as stock


class RequestPool:
    """The part of SGLang's request pool that PLE uses: each slot's last n - 1 tokens, EOS at first. Slot 0 is spare."""

    def __init__(self, slots: int, lookback: int, eos: int) -> None:
        self.contexts = torch.full((slots + 1, lookback), eos)
        self.ple_window_cache = None
        self.size = slots

    def get_mamba_indices(self, slots: torch.Tensor) -> torch.Tensor:
        return slots

    def get_ngram_context(self, slots: torch.Tensor) -> torch.Tensor:
        return self.contexts[slots]

    def set_ngram_context(self, slots: torch.Tensor, context: torch.Tensor) -> None:
        self.contexts[slots] = context


class NoTable(torch.nn.Module):
    """In place of the embedding: these tests ask for ids, and the real table has 320 million rows."""

    def __init__(self, rows: int, *_: Any, **__: Any) -> None:
        super().__init__()
        self.rows = rows


def answers(case: dict[str, Any], tokens: torch.Tensor, offsets: list[int]) -> dict[str, torch.Tensor]:
    config = SimpleNamespace(ple_offload_embedding=False, ple_embedding_dtype=None, **case["config"])
    with mock.patch.object(stock, "VocabParallelEmbedding", NoTable), _single_device():
        layers = [
            stock.Qwen4ExpNGramEmbedding(config, config.ple_embed_dim, ple_layer_index=index)
            for index in range(len(set(config.ple_layer_ids)))
        ]
        return {
            "multipliers": torch.stack([layer.layer_multipliers for layer in layers]),
            "primes": torch.stack([layer.ngram_heads_vocab_sizes for layer in layers]),
            "offsets": torch.stack([layer.ngram_heads_offsets for layer in layers]),
            "padded_rows": torch.tensor([layer.ngram_embedding.rows for layer in layers]),
            "rows/extend": _served(layers, tokens, offsets, len(tokens), ForwardMode.EXTEND),
            "rows/chunked": _served(layers, tokens, offsets, 2, ForwardMode.EXTEND),
            "rows/decode": _served(layers, tokens, offsets, 1, ForwardMode.DECODE),
        }


def _single_device() -> Any:
    """No data parallelism: the flag comes from a server's arguments, which there are none of."""
    return mock.patch.object(stock, "is_dp_attention_enabled", return_value=False)


def _served(layers: list[Any], tokens: torch.Tensor, offsets: list[int], size: int, mode: Any) -> torch.Tensor:
    first = layers[0]
    sequences = len(offsets) - 1
    pool = RequestPool(sequences, first.ngram_size - 1, first.eos_token_id)
    slots = 1 + torch.randperm(sequences)

    def step(part: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        batch = forward_batch(mode, chunks, slots)
        prepared = stock._prepare_ple_batch(
            part, batch, ngram_size=first.ngram_size, ngram_eos_token_id=first.eos_token_id
        )
        rows = torch.stack([layer.compute_ngram_ids(prepared) for layer in layers], dim=1)
        stock._commit_ple_batch(prepared, batch)
        return rows

    with mock.patch.object(stock, "get_req_to_token_pool", return_value=pool):
        return run(tokens, offsets, size, step)
