# SPDX-License-Identifier: Apache-2.0
"""Qwen3.8's PLE layers in SGLang: an n-gram embedding without a table, whose reads start a layer ahead.

Must stay identical to sglang.srt.models.qwen4_exp of the releases in supported.py. The one scale per tensor stays where
stock applies it: after the reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from slacktier.page import RowFormat, Superblock
from slacktier_engine.checkpoint_rows import ple_shard
from slacktier_engine.engram import no_rows
from slacktier_engine.runtime import EngineTier
from slacktier_engine.step_path import Dequantize, Phase, TableShape

_NO_ROWS = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=0)


def tiered_embedding(stock: Any, tier: EngineTier) -> Any:
    """A subclass of the engine's Qwen4ExpPinnedHostEmbedding, built from a table that is on no device at all."""

    class TieredPleEmbedding(stock):  # type: ignore[misc]
        def __init__(self, embedding: Any, *, backend: str = "", table_dir: str | None = None) -> None:
            nn.Module.__init__(self)
            for name in self._COPIED_ATTRIBUTES:
                setattr(self, name, getattr(embedding, name))
            self.shard_indices = _NO_ROWS  # the loader copies the rows of this range: none
            self.quant_method = None
            # FP8 whatever the checkpoint holds: the loader would swap a BF16 parameter for an FP8 one of full size.
            self.weight = no_rows(self.embedding_dim, torch.float8_e4m3fn)
            self.register_buffer("weight_scale", embedding.weight_scale, persistent=True)
            self.layer_id = -1  # name_layer() says
            self.early: tuple[Any, torch.Tensor] | None = None

        def gather(self, input_ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            """input_ids [T, C] row ids, as issued -> rows [T, C, dim] bf16, zeros where another rank owns them."""
            shape = (*input_ids.shape, self.embedding_dim)
            rows: torch.Tensor = self.allocate_output(shape, input_ids.device) if out is None else out
            if input_ids.shape[0]:
                tier.join(self.layer_id, input_ids, rows.view(-1, self.embedding_dim))
            return rows

    return TieredPleEmbedding


def build_without_table(original: Callable[..., None], embedding: Any, config: Any, *args: Any, **named: Any) -> None:
    """Around Qwen4ExpNGramEmbedding.__init__: take its off-loading branch, which allocates nothing on a device."""
    chosen = config.ple_offload_embedding
    config.ple_offload_embedding = True
    try:
        original(embedding, config, *args, **named)
    finally:
        config.ple_offload_embedding = chosen


def name_layer(_: None, layer: Any, *args: Any, **named: Any) -> None:
    """After Qwen4ExpPLELayer.__init__: the table's layer id, as checkpoints and regions count."""
    layer.ple_embedding.ngram_embedding.layer_id = layer.layer_id


def start_early(_: None, layer: Any, batch: Any, forward_batch: Any) -> None:
    """After Qwen4ExpPLELayer.start_prefetch, which the model calls one layer ahead: without a GPU it does nothing."""
    if layer._prefetch_stream is None and batch is not None:
        embedding = layer.ple_embedding.ngram_embedding
        embedding.early = None
        embedding.early = (batch, layer.ple_embedding.compute_ngram_ids(batch))


def issue_around_hash(tier: EngineTier) -> Callable[..., torch.Tensor]:
    """Around Qwen4ExpNGramEmbedding.compute_ngram_ids: start the reads of ids that were not started a layer ahead."""

    def hash_and_issue(original: Callable[..., torch.Tensor], ngram: Any, batch: Any) -> torch.Tensor:
        embedding = ngram.ngram_embedding
        early, embedding.early = embedding.early, None
        if early is not None and early[0] is batch:
            ids: torch.Tensor = early[1]
            return ids
        ids = original(ngram, batch)
        if ids.shape[0]:
            one_token_steps = batch.mode.is_decode() or batch.mode.is_target_verify()
            live = batch.valid_tokens.reshape(-1) if one_token_steps else None
            phase = Phase.DECODE if one_token_steps else Phase.PREFILL
            tier.issue(ids.unsqueeze(1), live if live is not None and len(live) == len(ids) else None, phase,
                       embedding.layer_id)  # fmt: skip
        return ids

    return hash_and_issue


def watch_update(tier: EngineTier) -> Callable[..., Any]:
    """Around Qwen4Exp...load_weights: shards that come with an update of a running server are compared, not taken."""

    def load(original: Callable[..., Any], model: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        touched: set[int] = set()

        def watched() -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in weights:
                if (shard := ple_shard(name)) is not None:
                    touched.add(shard[0])
                    tier.offer(*shard, tensor)
                yield name, tensor

        result = original(model, watched())
        for layer_id in sorted(touched):
            tier.weights_changed(layer_id)
        return result

    return load


def dequantizer(sb: Superblock) -> Dequantize:
    """Rows become bf16 as the engine's gather makes them; its scale comes later."""
    stored = torch.bfloat16 if sb.row_format is RowFormat.BF16 else torch.float8_e4m3fn

    def dequantize(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return payload.view(stored).to(torch.bfloat16)

    return dequantize


def find_tables(model: Any, qwen: Any) -> list[TableShape]:
    """The model's PLE layers in order of use; [] where it has none."""
    layers = [module for module in model.modules() if isinstance(module, qwen.Qwen4ExpPLELayer)]
    return [
        TableShape(
            layer.layer_id, layer.ple_embedding.ngram_embedding.org_vocab_size,
            layer.ple_embedding.ngram_embedding.embedding_dim, RowFormat.FP8_E4M3, layer.ple_embedding.ngram_heads,
        )
        for layer in sorted(layers, key=lambda layer: layer.layer_id)
    ]  # fmt: skip
