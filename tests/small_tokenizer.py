# SPDX-License-Identifier: Apache-2.0
"""A byte-level tokenizer of 300 ids, trained in a moment, for tests that must not depend on a model's."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

TEXT = "The cat The CAT é e\u0301 e café cafe  \t two\n\nlines def main(): return 42 \u6df1\u5ea6\u6c42\u7d22 "


def write_small_tokenizer(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
