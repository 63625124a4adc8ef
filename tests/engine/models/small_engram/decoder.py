# SPDX-License-Identifier: Apache-2.0
"""A small dense decoder around SGLang's own Engram layer, hasher and table: what V4.1 does with its tables, on a CPU.

V4.1's attention and experts need GPU kernels. Its Engram modules do not, and they are what a plugin replaces: they come
unchanged from `sglang.srt.layers.engram` and load tensors of the real names.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.engram import Engram, EngramHasher, EngramLayout
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import QKVParallelLinear, RowParallelLinear
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.layers.rotary_embedding import get_rope
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_loader.weight_utils import default_weight_loader
from sglang.srt.runtime_context import get_parallel
from torch import Tensor, nn
from torch.nn import functional

# 0.5.23's layer skips image tokens, for which it takes the token ids; 0.5.22's knows no such argument.
_TAKES_TOKENS = "input_ids" in inspect.signature(Engram.forward).parameters


class Attention(nn.Module):
    def __init__(self, config: Any, layer_id: int) -> None:
        super().__init__()
        ranks = get_parallel().tp_size
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        dim = config.hidden_size // heads
        self.widths = [heads // ranks * dim, kv_heads // ranks * dim, kv_heads // ranks * dim]
        self.qkv = QKVParallelLinear(config.hidden_size, dim, heads, kv_heads, bias=False)
        self.out = RowParallelLinear(heads * dim, config.hidden_size, bias=False)
        self.rope = get_rope(dim, rotary_dim=dim, max_position=config.max_position_embeddings, base=10000.0)
        self.attention = RadixAttention(heads // ranks, dim, dim**-0.5, kv_heads // ranks, layer_id=layer_id)

    def forward(self, positions: Tensor, x: Tensor, batch: Any) -> Tensor:
        q, k, v = self.qkv(x)[0].split(self.widths, dim=-1)
        q, k = self.rope(positions, q.contiguous(), k.contiguous())
        return self.out(self.attention(q, k, v, batch))[0]


class Layer(nn.Module):
    def __init__(self, config: Any, layer_id: int, layout: Any) -> None:
        super().__init__()
        self.engram = None
        if layer_id in layout.layer_ids:
            self.engram = Engram(config, layer_id, layout, prefix=f"model.layers.{layer_id}.engram")
        self.attn = Attention(config, layer_id)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, positions: Tensor, x: Tensor, batch: Any, tokens: Tensor, row_ids: Tensor) -> Tensor:
        if self.engram is not None:
            own = row_ids[:, self.engram.layer_hash_index]
            extra = {"input_ids": tokens} if _TAKES_TOKENS else {}
            x = self.engram(x.unsqueeze(1), own, batch, **extra).squeeze(1)
        x = x + self.attn(positions, self.attn_norm(x), batch)
        return x + self.down(functional.silu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        layout = EngramLayout.from_config(config)
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.engram_hasher = EngramHasher.from_config(config, layout)
        self.layers = nn.ModuleList(Layer(config, layer_id, layout) for layer_id in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor, positions: Tensor, batch: Any) -> Tensor:
        row_ids = self.engram_hasher(tokens, batch)
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(positions, x, batch, tokens, row_ids)
        return self.norm(x)


class SmallEngramForCausalLM(nn.Module):
    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: Any, input_embeds: Any = None, **_: Any
    ) -> Any:
        hidden = self.model(input_ids, positions, forward_batch)
        return self.logits_processor(input_ids, hidden, self.lm_head, forward_batch)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        missing = dict(self.named_parameters())
        for name, tensor in weights:
            parameter = missing.pop(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, tensor)
        if missing:
            raise ValueError(f"not in the checkpoint: {', '.join(sorted(missing))}")
        for layer_id, layer in enumerate(self.model.layers):
            if layer.engram is not None:
                layer.engram.embed.finish_load(f"layer {layer_id}")


EntryClass = SmallEngramForCausalLM
