# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4.1's Engram layers in SGLang: an embedding without a table, and the point where a step's reads start.

Must stay identical to sglang.srt.layers.engram of the releases in supported.py: EngramEmbedding's attributes, its
arithmetic (called, never restated) and its reduction. Neighbours: hooks.py puts these in place, runtime.py serves them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from slacktier.page import RowFormat, Superblock
from slacktier_engine.runtime import EngineTier
from slacktier_engine.step_path import Dequantize, Phase, TableShape


def tiered_embedding(stock: Any, tier: EngineTier) -> Any:
    """A subclass of the engine's EngramEmbedding that holds no row: nothing is loaded, allocated or pinned."""

    tier.stock_engram = stock

    class TieredEngramEmbedding(stock):  # type: ignore[misc]
        def __init__(self, num_embeddings: int, dim: int, layer_id: int, *layout: Any, **named: Any) -> None:
            nn.Module.__init__(self)
            self.dim, self.layer_id, self.num_embeddings = dim, layer_id, num_embeddings
            self.tp_size = tier.parallel().tp_size
            self.row_start = self.rows = 0
            self.host_table = self.peer = None
            self.staged_by_scheduler = self._sort_host_reads = False
            offer = partial(tier.offer, layer_id)
            self.weight = no_rows(dim, torch.float8_e4m3fn, partial(offer, "weight"))
            self.scale = no_rows(dim // _block(stock), torch.float8_e8m0fnu, partial(offer, "scale"))

        def finish_load(self, label: str) -> None:
            tier.weights_changed(self.layer_id)

        def forward(
            self, indices: torch.Tensor, forward_batch: Any = None, *, cp_all_tokens: bool = False
        ) -> torch.Tensor:
            """indices [T, C] row ids of this layer, as issued -> rows [T, C, dim] bf16."""
            out = torch.empty(*indices.shape, self.dim, dtype=torch.bfloat16, device=indices.device)
            if indices.shape[0] == 0:
                return out
            if forward_batch is not None and forward_batch.forward_mode.is_idle():
                return out.zero_()  # a DP rank without work pads its batch; nothing was looked up
            tier.join(self.layer_id, indices, out.view(-1, self.dim))
            return self._reduce_owned_rows(out) if tier.striped else out

    return TieredEngramEmbedding


def no_rows(width: int, dtype: torch.dtype, offer: Callable[[torch.Tensor], None] | None = None) -> nn.Parameter:
    """A parameter that the loader finds by name and that declines its tensor, which then is not read.

    offer  is told of the tensor: an update of a running server may not change it
    """
    empty = nn.Parameter(torch.empty((0, width), dtype=dtype, device="cpu"), requires_grad=False)

    def decline(_: nn.Parameter, loaded_weight: torch.Tensor, *__: Any, **___: Any) -> None:
        if offer is not None:
            offer(loaded_weight)

    empty.weight_loader = decline
    return empty


def _block(stock: Any) -> int:
    """Values per scale: a constant of the module that defines the embedding."""
    return int(vars(__import__(stock.__module__, fromlist=["FP8_BLOCK_SIZE"]))["FP8_BLOCK_SIZE"])


def dequantizer(stock: Any, sb: Superblock) -> Dequantize:
    """The engine's own arithmetic on gathered rows: its lookup, over a table that is those rows."""

    table = _Table(stock)
    every = torch.arange(0)

    def dequantize(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        nonlocal every
        if len(every) < len(payload):
            every = torch.arange(len(payload))
        table.hold(payload.view(torch.float8_e4m3fn), scales.view(torch.float8_e8m0fnu))
        return table.rows(every[: len(payload)])

    return dequantize


def table_lookup(stock: Any, weight: torch.Tensor, scale: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows `ids` of a table in memory, by stock's arithmetic: [..., dim] bf16."""
    table = _Table(stock)
    table.hold(weight, scale)
    return table.rows(ids)


class _Table:
    """One of the engine's embeddings, over tensors that are given to it one after another."""

    def __init__(self, stock: Any) -> None:
        self._lookup = stock._owned_rows
        self._table = stock.__new__(stock)
        nn.Module.__init__(self._table)
        # Past nn.Module's own way, which for each tensor looks through all that it keeps.
        self._fields = self._table.__dict__
        self._fields |= {"row_start": 0, "host_table": None, "_sort_host_reads": False}

    def hold(self, weight: torch.Tensor, scale: torch.Tensor) -> None:
        self._fields |= {"weight": weight, "scale": scale, "dim": weight.shape[1], "rows": weight.shape[0]}

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self._lookup(self._table, ids)
        return found


def find_tables(model: Any, engram: Any) -> list[TableShape]:
    """The model's Engram layers in order of use; [] where it has none."""
    found = {}
    for module in model.modules():
        if isinstance(module, engram.Engram):
            found[module.layer_hash_index] = module.embed
    hashers = [module for module in model.modules() if isinstance(module, engram.EngramHasher)]
    if not found or not hashers:
        return []
    columns = hashers[0].offsets.shape[1]
    return [
        TableShape(embed.layer_id, embed.num_embeddings, embed.dim, RowFormat.FP8_E4M3_BLOCK_E8M0, columns)
        for _, embed in sorted(found.items())
    ]


def issue_after_hash(tier: EngineTier) -> Any:
    """The hook after EngramHasher.forward: the earliest point where a step's row ids of all layers are known."""

    def issue(result: torch.Tensor, hasher: Any, input_ids: torch.Tensor, forward_batch: Any) -> None:
        mode = forward_batch.forward_mode
        if result.shape[0] == 0 or mode.is_idle():
            return
        one_token_steps = mode.is_decode() or mode.is_target_verify()
        # Only graphs of decode and verify pad; in an extend slot 0 says nothing.
        live = forward_batch.out_cache_loc if one_token_steps else None
        tier.issue(result, live, Phase.DECODE if one_token_steps else Phase.PREFILL)

    return issue
