# SPDX-License-Identifier: Apache-2.0
"""Row ids from SGLang's EngramHasher, by each of the ways in which a server calls it."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from batches import Chunk, forward_batch, run
from sglang.srt.layers import engram as stock
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from transformers import PreTrainedTokenizerFast

DRAFT_TOKENS = 4

# The same functions, each asked once per tokenizer: building a map takes seconds.
load_tokenizer = cache(lambda path: PreTrainedTokenizerFast(tokenizer_file=path))
stock.build_compressed_token_map = cache(stock.build_compressed_token_map)


def answers(case: dict[str, Any], tokens: torch.Tensor, offsets: list[int]) -> dict[str, torch.Tensor]:
    config = SimpleNamespace(**case["config"])
    layout = stock.EngramLayout.from_config(config)
    tokenizer = load_tokenizer(case["tokenizer"])
    # The constructor builds the token map and asserts that it has the config's number of codes.
    compressed = config.engram_compressed_vocab_size
    hasher = stock.EngramHasher(layout, tokenizer, config.engram_pad_token_id, compressed)
    hasher.image_token_id = case["image_token_id"]
    found = {
        "token_map": hasher.token_map,
        "multipliers": stock.compute_hash_multipliers(layout.layer_ids, layout.max_ngram_size, compressed),
        "primes": torch.tensor(layout.primes),
        "offsets": hasher.offsets,
    }
    for name, size, mode in (
        ("extend", len(tokens), ForwardMode.EXTEND),
        ("chunked", 3, ForwardMode.EXTEND),
        ("decode", 1, ForwardMode.DECODE),
    ):
        found[f"rows/{name}"] = _served(hasher, tokens, offsets, size, mode)
    found["rows/verify"] = _verified(hasher, tokens, offsets)
    if case["image_token_id"] is None:
        found["rows/windows"] = _from_windows(hasher, tokens, offsets)
    return found


def _slots(hasher: Any, sequences: int) -> torch.Tensor:
    """Request slots in no particular order, their histories full of another request's tokens."""
    hasher.init_history(sequences, "cpu")
    hasher.history.random_(0, len(hasher.token_map))
    return torch.randperm(sequences)


def _served(hasher: Any, tokens: torch.Tensor, offsets: list[int], size: int, mode: Any) -> torch.Tensor:
    slots = _slots(hasher, len(offsets) - 1)

    def step(part: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        return hasher(part, forward_batch(mode, chunks, slots))

    return run(tokens, offsets, size, step)


def _verified(hasher: Any, tokens: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """Speculative decoding whose drafts are all accepted; a tail shorter than a draft is extended."""
    slots = _slots(hasher, len(offsets) - 1)

    def verify(drafts: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        batch = forward_batch(ForwardMode.TARGET_VERIFY, chunks, slots)
        batch.spec_info = SimpleNamespace(draft_token_num=DRAFT_TOKENS)
        rows = hasher(drafts, batch)
        accepted = torch.full((len(chunks),), DRAFT_TOKENS)
        hasher.commit_after_verify(drafts.view(-1, DRAFT_TOKENS), batch.req_pool_indices, accepted)
        return rows

    def extend(tails: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        return hasher(tails, forward_batch(ForwardMode.EXTEND, chunks, slots))

    def step(part: torch.Tensor, chunks: list[Chunk]) -> torch.Tensor:
        widths = torch.tensor([chunk.end - chunk.first for chunk in chunks])
        of_draft = torch.repeat_interleave(widths == DRAFT_TOKENS, widths)
        rows = torch.empty(len(part), *hasher.offsets.shape, dtype=torch.int64)
        for places, hashed, whole in ((of_draft, verify, True), (~of_draft, extend, False)):
            chosen = [chunk for chunk in chunks if (chunk.end - chunk.first == DRAFT_TOKENS) == whole]
            if chosen:
                rows[places] = hashed(part[places], chosen)
        return rows

    return run(tokens, offsets, DRAFT_TOKENS, step)


def _from_windows(hasher: Any, tokens: torch.Tensor, offsets: list[int]) -> torch.Tensor:
    """compute_engram_hash_ids on an explicit table of predecessors."""
    n = hasher.max_ngram_size
    positions = torch.cat([torch.arange(end - first) for first, end in pairwise(offsets)])
    shifts = torch.arange(n)
    places = torch.arange(len(tokens))[:, None] - shifts
    return stock.compute_engram_hash_ids(
        tokens[places.clamp_min(0)], positions[:, None] < shifts, hasher.pad_id,
        hasher.token_map, hasher.multipliers, hasher.primes, hasher.offsets,
    )  # fmt: skip
