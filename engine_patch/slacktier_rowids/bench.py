# SPDX-License-Identifier: Apache-2.0
"""How fast row ids are made: tokens per second of one core in prefill, microseconds of a decode step.

The token map is made up (the released one's size and number of codes), so that no tokenizer is needed; random tokens
read it in the least favourable order.
"""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

import numpy as np

from slacktier_rowids.engram import EngramHasher, EngramLayout
from slacktier_rowids.models import V41_CONFIG


def run(*, tokens: int = 8192, sequences: int = 128, repeats: int = 50) -> dict[str, Any]:
    """Prefill chunks of `tokens` and decode steps of `sequences`, all 48 row ids of V4.1 per token.

    tokens_per_s_per_core  by processor time, so what other programs take does not count; best and median of `repeats`
    step_us                wall-clock time of one decode step, median and p99
    """
    layout = EngramLayout.from_config(V41_CONFIG)
    vocab_size = V41_CONFIG["text_config"]["vocab_size"]
    hasher = EngramHasher(layout, np.arange(vocab_size) % layout.compressed_vocab_size)
    rng = np.random.default_rng(1)
    chunk, recent = rng.integers(0, vocab_size, tokens), rng.integers(0, vocab_size, (sequences, hasher.ngram_size))
    prefill_s = [_seconds(process_time, hasher.sequence, chunk) for _ in range(repeats)]
    step_us = [1e6 * _seconds(perf_counter, hasher.step, recent) for _ in range(20 * repeats)]
    return {
        "model": "v41",
        "ids_per_token": layout.columns * len(layout.layer_ids),
        "tokens": tokens,
        "tokens_per_s_per_core": {"best": tokens / min(prefill_s), "median": tokens / float(np.median(prefill_s))},
        "sequences": sequences,
        "step_us": {"p50": float(np.percentile(step_us, 50)), "p99": float(np.percentile(step_us, 99))},
    }


def _seconds(clock: Any, call: Any, argument: Any) -> float:
    begun: float = clock()
    call(argument)
    return float(clock() - begun)
