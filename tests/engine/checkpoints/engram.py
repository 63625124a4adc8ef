# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint for `small_engram` with random weights, to $OUT/checkpoint: python engram.py TABLE_BYTES

Runs in the engine's environment: row counts and compressed vocabulary come from SGLang's own layout and token map. Each
layer's table is a file of its own under the real model's tensor names, so that staging reads it as it reads V4.1's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from sglang.srt.layers import engram as stock
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from tokenizer import write_tokenizer

COLUMNS = 24  # (4 - 1) n-gram sizes, 8 heads each
HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS = 64, 128, 4, 4, 2
ENGRAM_LAYERS = [1, 3]
SMALL_ROWS, SMALL_DIM = 1000, 32
LARGE_DIM = 256  # V4.1's
E8M0_BLOCK = 32
CHUNK_ROWS = 1 << 20


def config_of(folder: Path, table_bytes: int) -> dict[str, Any]:
    """table_bytes is for all layers, 0 for the smallest tables that still have collisions and distinct primes."""
    tokenizer = write_tokenizer(folder)
    dim = LARGE_DIM if table_bytes else SMALL_DIM
    per_column = table_bytes // (len(ENGRAM_LAYERS) * COLUMNS * (dim + dim // E8M0_BLOCK)) or SMALL_ROWS
    config = {
        "architectures": ["SmallEngramForCausalLM"],
        "model_type": "qwen2",  # one that transformers knows; the architecture decides the model
        "hidden_size": HIDDEN,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": len(tokenizer),  # exactly: a sampled id past the token map would have no code
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "hc_mult": 1,
        "engram_layer_ids": ENGRAM_LAYERS,
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_vocab_size": per_column,
        "engram_head_dim": dim,
        "engram_pad_token_id": tokenizer.pad_token_id,
    }
    # The server picks its tokenizer class by the model type, so the config has to lie there before the map is built.
    (folder / "config.json").write_text(json.dumps(config))
    config["engram_compressed_vocab_size"] = stock.build_compressed_token_map(get_tokenizer(str(folder)))[1]
    config["engram_num_embeddings"] = [0] * len(ENGRAM_LAYERS)
    layout = stock.EngramLayout.from_config(SimpleNamespace(**config))
    config["engram_num_embeddings"] = [sum(map(sum, primes)) for primes in layout.primes]
    return config


def decoder_tensors(config: dict[str, Any], draw: torch.Generator) -> dict[str, torch.Tensor]:
    def normal(*shape: int, std: float = 0.1) -> torch.Tensor:
        return (torch.randn(*shape, generator=draw) * std).to(torch.bfloat16)

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, dtype=torch.bfloat16)

    kv_width = HIDDEN // HEADS * KV_HEADS
    tensors = {
        "model.embed_tokens.weight": normal(config["vocab_size"], HIDDEN, std=1.0),
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": normal(config["vocab_size"], HIDDEN, std=0.3),
    }
    for layer_id in range(LAYERS):
        of_layer = {
            "attn.qkv.weight": normal(HIDDEN + 2 * kv_width, HIDDEN),
            "attn.out.weight": normal(HIDDEN, HIDDEN),
            "attn_norm.weight": ones(HIDDEN),
            "mlp_norm.weight": ones(HIDDEN),
            "up.weight": normal(FEED_FORWARD, HIDDEN),
            "down.weight": normal(HIDDEN, FEED_FORWARD),
        }
        if layer_id in ENGRAM_LAYERS:
            of_layer |= {
                "engram.wkv.weight": normal(2 * HIDDEN, COLUMNS * config["engram_head_dim"]),
                "engram.q_weight": 1 + normal(1, HIDDEN),
                "engram.k_weight": 1 + normal(1, HIDDEN),
            }
        tensors |= {f"model.layers.{layer_id}.{name}": tensor for name, tensor in of_layer.items()}
    return tensors


def table_arrays(rows: int, dim: int, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Random FP8 values up to 3.75, no NaN, [rows, dim]; block scales from 1/4 to 4, [rows, dim / 32]. As bytes."""
    weight = np.empty((rows, dim), dtype=np.uint8)
    for first in range(0, rows, CHUNK_ROWS):
        part = draw.integers(0, 256, weight[first : first + CHUNK_ROWS].shape, dtype=np.uint8)
        weight[first : first + CHUNK_ROWS] = (part & 0x80) | ((part & 0x7F) % 0x48)
    return weight, draw.integers(125, 130, (rows, dim // E8M0_BLOCK), dtype=np.uint8)


def write_table(path: Path, prefix: str, weight: np.ndarray, scale: np.ndarray) -> None:
    tensors = {
        f"{prefix}.weight": torch.from_numpy(weight).view(torch.float8_e4m3fn),
        f"{prefix}.scale": torch.from_numpy(scale).view(torch.float8_e8m0fnu),
    }
    save_file(tensors, path, {"format": "pt"})


def main(table_bytes: str) -> None:
    folder = Path(os.environ["OUT"]) / "checkpoint"
    folder.mkdir()
    config = config_of(folder, int(table_bytes))
    save_file(decoder_tensors(config, torch.Generator().manual_seed(0)), folder / "model.safetensors", {"format": "pt"})
    for layer_id, rows in zip(ENGRAM_LAYERS, config["engram_num_embeddings"], strict=True):
        weight, scale = table_arrays(rows, config["engram_head_dim"], np.random.default_rng(layer_id))
        write_table(folder / f"engram-{layer_id}.safetensors", f"model.layers.{layer_id}.engram.embed", weight, scale)
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
