# SPDX-License-Identifier: Apache-2.0
"""Continuous batching: which sequences the next step works on, and what each step yields. No clock, no I/O.

As in SGLang: prefill comes before decode, in chunks that several prompts may share; the step that computes a prompt's
last token yields the answer's first; one decode step yields one token of every running sequence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier_emulated.answers import Answer
from slacktier_emulated.prefix_cache import BLOCK_TOKENS, PrefixCache

Tokens = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.int64]
BEFORE_START: Final = -1


class Phase(IntEnum):
    DECODE = 0
    PREFILL = 1


class Finish(IntEnum):
    """Why a sequence ended with this token; NONE where it goes on."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


@dataclass(slots=True, eq=False)
class TokenSequence:
    """One request inside the engine.

    computed  prompt tokens whose prefill is done or was cached
    chain     prefix-cache keys of the blocks known so far
    """

    request_id: int
    prompt: Tokens
    answer: Answer
    max_tokens: int
    eos: int | None
    computed: int = 0
    chain: list[bytes] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens [first, end) of one sequence."""

    sequence: TokenSequence
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step computes: chunks of prompts, or one token each of `sequences`."""

    phase: Phase
    sequences: tuple[TokenSequence, ...]
    chunks: tuple[Chunk, ...] = ()

    @property
    def token_count(self) -> int:
        return sum(c.end - c.first for c in self.chunks) if self.chunks else len(self.sequences)


@dataclass(slots=True)
class Outputs:
    """What one step yields, as parallel lists: (request, token, finish), and prompts begun with their cached part."""

    request_ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finishes: list[int] = field(default_factory=list)
    started_ids: list[int] = field(default_factory=list)
    started_cached: list[int] = field(default_factory=list)

    def add(self, request_id: int, token: int, finish: Finish) -> None:
        self.request_ids.append(request_id)
        self.tokens.append(token)
        self.finishes.append(finish)

    def __bool__(self) -> bool:
        return bool(self.request_ids or self.started_ids)


class Scheduler:
    """FIFO queue and running batch.

    running_max   sequences in prefill and decode together
    chunk_tokens  prompt tokens that one prefill step computes at most
    ngram_size    tokens that a row id depends on, the newest included
    """

    def __init__(self, *, running_max: int, chunk_tokens: int, ngram_size: int, cache: PrefixCache) -> None:
        self._running_max = running_max
        self._chunk_tokens = chunk_tokens
        self._ngram_size = ngram_size
        self.cache = cache
        self._waiting: deque[TokenSequence] = deque()
        self._prefilling: list[TokenSequence] = []
        self._running: list[TokenSequence] = []
        self._by_id: dict[int, TokenSequence] = {}
        self._outputs = Outputs()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        return len(self._running) + len(self._prefilling)

    @property
    def has_work(self) -> bool:
        return bool(self._by_id)

    def submit(self, sequence: TokenSequence) -> None:
        self._waiting.append(sequence)
        self._by_id[sequence.request_id] = sequence

    def cancel(self, request_id: int) -> None:
        """Forget the request; a step in flight yields nothing for it. Unknown ids have ended already."""
        sequence = self._by_id.get(request_id)
        if sequence is not None:
            self._drop(sequence)
            self._outputs.add(request_id, 0, Finish.CANCELLED)

    def fail(self, batch: Batch) -> list[int]:
        """Drop the batch's sequences and name those that were still wanted."""
        failed = [sequence for sequence in batch.sequences if not sequence.is_over]
        for sequence in failed:
            self._drop(sequence)
        return [sequence.request_id for sequence in failed]

    def next_batch(self) -> Batch | None:
        """The next step's work, or None if there is none."""
        chunks = tuple(self._prefill_chunks())
        if chunks:
            return Batch(Phase.PREFILL, tuple(chunk.sequence for chunk in chunks), chunks)
        if self._running:
            return Batch(Phase.DECODE, tuple(self._running))
        return None

    def complete(self, batch: Batch) -> None:
        """The step worked: take its tokens."""
        for chunk in batch.chunks:
            sequence = chunk.sequence
            if sequence.is_over:
                continue
            sequence.computed = chunk.end
            self.cache.extend(sequence.chain, sequence.prompt[: chunk.end])
            if chunk.end == len(sequence.prompt):
                self._prefilling.remove(sequence)
                self._running.append(sequence)
                self._emit(sequence)
        if batch.phase is Phase.DECODE:
            for sequence in batch.sequences:
                if not sequence.is_over:
                    self._emit(sequence)

    def take_outputs(self) -> Outputs:
        """What has been yielded since the last call."""
        outputs, self._outputs = self._outputs, Outputs()
        return outputs

    def _prefill_chunks(self) -> Iterator[Chunk]:
        budget = self._chunk_tokens
        at = 0
        while budget > 0:
            if at == len(self._prefilling) and not self._admit():
                return
            sequence = self._prefilling[at]
            end = min(len(sequence.prompt), sequence.computed + budget)
            budget -= end - sequence.computed
            at += 1
            yield Chunk(sequence, sequence.computed, end)

    def _admit(self) -> bool:
        """Move the oldest waiting request into prefill, if there is one and a slot for it."""
        if not self._waiting or self.running_count >= self._running_max:
            return False
        sequence = self._waiting.popleft()
        sequence.chain = self.cache.match(sequence.prompt)
        sequence.computed = len(sequence.chain) * BLOCK_TOKENS
        self._outputs.started_ids.append(sequence.request_id)
        self._outputs.started_cached.append(sequence.computed)
        recent = [int(token) for token in sequence.prompt[-self._ngram_size :]]
        sequence.recent = [BEFORE_START] * (self._ngram_size - len(recent)) + recent
        self._prefilling.append(sequence)
        return True

    def _emit(self, sequence: TokenSequence) -> None:
        token, is_last = sequence.answer.next()
        sequence.output.append(token)
        sequence.recent = [*sequence.recent[1:], token]
        finish = Finish.NONE
        if token == sequence.eos or (is_last and len(sequence.output) < sequence.max_tokens):
            finish = Finish.STOP
        elif len(sequence.output) >= sequence.max_tokens:
            finish = Finish.LENGTH
        self._outputs.add(sequence.request_id, token, finish)
        if finish is not Finish.NONE:
            # The last token was never computed on, so its place in the prefix is not known yet.
            tokens = np.concatenate([sequence.prompt, np.array(sequence.output[:-1], np.uint32)])
            self.cache.extend(sequence.chain, tokens)
            self._drop(sequence)

    def _drop(self, sequence: TokenSequence) -> None:
        sequence.is_over = True
        del self._by_id[sequence.request_id]
        for group in (self._running, self._prefilling, self._waiting):
            if sequence in group:
                group.remove(sequence)


def prefill_inputs(batch: Batch, ngram_size: int) -> tuple[Tokens, list[int], Ids]:
    """Tokens [T] of all chunks, their offsets [S + 1], and what stands before each, [S, ngram_size - 1]."""
    offsets = [0]
    history = np.full((len(batch.chunks), ngram_size - 1), BEFORE_START, np.int64)
    for row, chunk in zip(history, batch.chunks, strict=True):
        offsets.append(offsets[-1] + chunk.end - chunk.first)
        before = chunk.sequence.prompt[max(0, chunk.first - ngram_size + 1) : chunk.first]
        if len(before):
            row[-len(before) :] = before
    tokens = np.concatenate([chunk.sequence.prompt[chunk.first : chunk.end] for chunk in batch.chunks])
    return tokens, offsets, history


def decode_inputs(batch: Batch) -> Ids:
    """The last tokens of each sequence, [B, ngram_size], oldest first."""
    return np.array([sequence.recent for sequence in batch.sequences], np.int64)
