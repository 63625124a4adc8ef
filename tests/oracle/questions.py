# SPDX-License-Identifier: Apache-2.0
"""What the oracle is asked: model configs of every shape, random tokens and the tokens of real text."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from slacktier_rowids.engram import flatten, scaled_config
from slacktier_rowids.models import QWEN38_CONFIG, V41_CONFIG
from slacktier_rowids.tokenizer import TextTokenizer, V4Tokenizer, v4_tokenizer_path
from slacktier_rowids.tokenmap import build_token_map

TEXTS = ("typing.py", "turtle.py", "inspect.py")
TEXT_TOKENS = 1000


@dataclass(frozen=True)
class Question:
    """One model and the sequences to hash with it; config is flat, as SGLang's config objects are."""

    name: str
    family: str
    config: dict[str, Any]
    tokens: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    tokenizer: Path | None = None

    def case(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.family,
            "config": self.config,
            "tokenizer": str(self.tokenizer),
            "image_token_id": self.config.get("image_token_id"),
        }


def all_questions(folder: Path) -> list[Question]:
    """folder  where a small tokenizer is made"""
    v41, v4 = flatten(V41_CONFIG), v4_tokenizer_path()
    text_model = {key: value for key, value in v41.items() if key != "image_token_id"}
    small_path, small = small_model(folder)
    small_sequences = random_sequences(small["vocab_size"], [small["engram_pad_token_id"]])
    qwen = dict(QWEN38_CONFIG["text_config"])
    tokenizer = V4Tokenizer.load()
    texts = [np.array(tokenizer.encode(text)[:TEXT_TOKENS]) for text in real_texts()]
    return [
        _ask("v41-text", "engram", text_model, texts, v4),
        _ask("v41-random", "engram", text_model, random_sequences(129280, [0, 1, 2, 129279]), v4),
        _ask("v41-images", "engram", v41, random_sequences(129280, [129264, 1_000_000, 1_234_567, 2]), v4),
        _ask("small", "engram", small, small_sequences, small_path),
        _ask("small-2gram", "engram", _shape(small, 900, [3], 2, 5), small_sequences, small_path),
        _ask("small-5gram", "engram", _shape(small, 70, [0, 7, 30], 5, 3), small_sequences, small_path),
        _ask("qwen-random", "ple", qwen, random_sequences(248320, [248044, 248044, 0, 248319])),
        _ask("qwen-text", "ple", qwen, [np.where(text == 201, 248044, text) for text in texts]),
        _ask("ple-4gram-two-layers", "ple", _ple(), random_sequences(320, [258])),
    ]


def _ask(
    name: str, family: str, config: dict[str, Any], sequences: list[Any], tokenizer: Path | None = None
) -> Question:
    offsets = np.cumsum([0, *map(len, sequences)])
    return Question(name, family, config, np.concatenate(sequences).astype(np.int64), offsets, tokenizer)


def _shape(config: dict[str, Any], base: int, layers: list[int], ngram: int, heads: int) -> dict[str, Any]:
    shape = {"engram_layer_ids": layers, "engram_max_ngram_size": ngram, "engram_n_heads": heads}
    return scaled_config({**config, **shape}, base)


def _ple() -> dict[str, Any]:
    return {
        "vocab_size": 320, "eos_token_id": 258, "ple_layer_ids": [5, 2], "ple_embed_dim": 60, "ngram_size": 4,
        "heads_per_ngram": 5, "ngram_vocab_size_base": 1000, "make_ngram_vocab_size_divisible_by": 64, "seed": 7,
    }  # fmt: skip


def random_sequences(vocab_size: int, marked: list[int]) -> list[Any]:
    """60 sequences of 1 to 40 tokens, a quarter of them from `marked`: PAD, EOS, images, the first and last id."""
    rng = np.random.default_rng(41)
    sequences = []
    for length in [1, 2, 3, 4, 5, *rng.integers(1, 41, 55)]:
        tokens = rng.integers(0, vocab_size, length)
        sequences.append(np.where(rng.random(length) < 0.25, rng.choice(marked, length), tokens))
    return sequences


def real_texts() -> list[str]:
    """Source files of the Python that runs this: text that every machine has."""
    library = Path(sysconfig.get_path("stdlib"))
    return [(library / name).read_text(encoding="utf-8") for name in TEXTS]


def small_model(folder: Path) -> tuple[Path, dict[str, Any]]:
    """A byte-level tokenizer of 600 ids trained on real text, and a model config that goes with it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(real_texts(), trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    compressed = int(build_token_map(TextTokenizer(tokenizer)).max()) + 1
    own = {"vocab_size": 600, "engram_pad_token_id": 0, "engram_compressed_vocab_size": compressed}
    shape = {"engram_layer_ids": [1, 3], "engram_max_ngram_size": 4, "engram_n_heads": 8, "engram_head_dim": 32}
    return path, scaled_config({**own, **shape}, 1000)
