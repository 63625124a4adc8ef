# SPDX-License-Identifier: Apache-2.0
"""Writes a small Qwen4Exp checkpoint with random weights, and what transformers answers with it.

python qwen.py '{"prompts": [[token id, ...], ...], "new_tokens": N}'

Goes to $OUT/checkpoint and $OUT/answers.json, [{"tokens": N greedy ones, "margins": of logits}, ...], those of
transformers' eager model.

transformers always builds the sparse attention's indexer. With a budget beyond every prompt it attends to all, as the
engine does without an indexer, so the indexer's weights are left out of the checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizer import write_tokenizer
from transformers import AutoConfig, AutoModelForImageTextToText

VOCAB = 320
INDEXER = {
    "indexer_n_heads": 1,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 4096,
    "indexer_compress_ratio": 2,
}


def text_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen4_exp_text",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "full_attention_interval": 1,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "hc_count": 2,
        "hc_lowrank": 16,
        "ple_layer_ids": [2],
        "ple_embed_dim": 64,
        "ple_conv_kernel_size": 4,
        "ngram_size": 3,
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": 1000,
        "make_ngram_vocab_size_divisible_by": 128,
        "split_ngram_parts": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "partial_rotary_factor": 1.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        **ids,
    }


def config_of(folder: Path) -> dict[str, Any]:
    tokenizer = write_tokenizer(folder)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_id": VOCAB - 4,
        "video_token_id": VOCAB - 3,
        "vision_start_token_id": VOCAB - 2,
        "vision_end_token_id": VOCAB - 1,
        "vision_config": {
            "depth": 1,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_heads": 2,
            "out_hidden_size": 64,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [],
            "num_position_embeddings": 64,
        },
        "text_config": text_config(ids),
    }


def random_model(folder: Path) -> Any:
    config = AutoConfig.from_pretrained(folder)
    for name, value in INDEXER.items():
        setattr(config.text_config, name, value)
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and not name.endswith(("A_log", "dt_bias")):
                # The table's rows as large as activations, so that the tokens hang on them.
                parameter.normal_(0, 1.0 if "ngram" in name else 0.08)
    return model.to(torch.bfloat16).eval()


def greedy(model: Any, prompt: list[int], new_tokens: int) -> dict[str, Any]:
    """margins: by how much each token's logit exceeded the next likeliest one's."""
    with torch.no_grad():
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    best = torch.stack([logits[0].float().topk(2).values for logits in made.logits])
    return {"tokens": made.sequences[0, len(prompt) :].tolist(), "margins": (best[:, 0] - best[:, 1]).tolist()}


def main(asked: str) -> None:
    out = Path(os.environ["OUT"])
    folder = out / "checkpoint"
    folder.mkdir()
    config = json.dumps(config_of(folder), indent=1)
    (folder / "config.json").write_text(config)
    model = random_model(folder)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if ".indexer." not in name}
    model.save_pretrained(folder, state_dict=tensors)
    (folder / "config.json").write_text(config)  # as the engine is to see it: without an indexer
    question = json.loads(asked)
    answers = [greedy(model, prompt, question["new_tokens"]) for prompt in question["prompts"]]
    (out / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
