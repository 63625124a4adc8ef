# SPDX-License-Identifier: Apache-2.0
"""Reuse that needs no cache to see: in a batch, in a window, within a session, between sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier_cli.characterize.lookups import Lookups
from slacktier_cli.characterize.schedule import Schedule, one_by_one
from slacktier_cli.traces import Role, Trace
from slacktier_native.cache_sim import Phase, Stream

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

WINDOW_TOKENS: Final = 8192
BATCH_TOKENS: Final = 256
_BATCHES: Final = 200


@dataclass(frozen=True)
class Distinct:
    """Lookups that name a row for the first time in their batch or window, as a share of all its lookups.

    pages_per_row  distinct pages / distinct rows; 1 means that no two rows lie on one page
    count          batches or windows looked at
    """

    share: float
    pages_per_row: float
    count: int


def distinct_in(lookups: Lookups, stream: Stream, bounds: I64, phase: Phase = Phase.ALL) -> Distinct:
    """Over ranges of the stream's order; the shares are of all lookups, so every token must be of that phase."""
    _, rows = stream.distinct(bounds, phase)
    _, pages = stream.distinct(bounds, phase, lookups.pages)
    tokens = int(bounds[-1] - bounds[0])
    row_total = int(rows.sum())
    return Distinct(
        share=min(row_total / (max(tokens, 1) * lookups.columns * lookups.rate), 1.0),
        pages_per_row=int(pages.sum()) / max(row_total, 1),
        count=len(bounds) - 1,
    )


def decode_steps(lookups: Lookups, schedule: Schedule) -> Distinct:
    """The decode lookups of full steps."""
    decoded = lookups.decode[schedule.order].astype(bool)
    full = np.repeat(schedule.full_steps(), np.diff(schedule.steps))
    bounds = np.concatenate([[0], np.cumsum(schedule.decode_tokens[schedule.full_steps()])])
    return distinct_in(lookups, lookups.stream(schedule.order[decoded & full]), bounds)


def random_batches(lookups: Lookups, positions: U32, seed: int) -> Distinct:
    """Batches of BATCH_TOKENS decode tokens drawn from anywhere in the trace."""
    decoded = positions[lookups.decode[positions].astype(bool)]
    size = min(BATCH_TOKENS, len(decoded))
    random = np.random.default_rng(seed)
    drawn = [random.choice(decoded, size, replace=False) for _ in range(_BATCHES)] if size else [decoded]
    return distinct_in(lookups, lookups.stream(np.concatenate(drawn)), size * np.arange(len(drawn) + 1))


def windows(lookups: Lookups, order: U32) -> Distinct:
    """Consecutive windows of WINDOW_TOKENS tokens of that order; a shorter rest is looked at only if it is all."""
    size = min(WINDOW_TOKENS, max(len(order), 1))
    count = len(order) // size
    return distinct_in(lookups, lookups.stream(order), size * np.arange(count + 1))


@dataclass(frozen=True)
class Coverage:
    """Share of decode lookups whose row the same session used before.

    prompt             in this turn's prompt, which is the whole history
    prompt_and_answer  anywhere before this token, so in its own answer too
    first_turn         lookups of the session's first answer only: in its prompt
    """

    prompt: float
    prompt_and_answer: float
    first_turn: float


def coverage(lookups: Lookups, trace: Trace, session_count: int) -> Coverage:
    """Of the first session_count sessions."""
    offsets = trace.session_offsets[: session_count + 1]
    turn_start = np.repeat(trace.turn_start, trace.turn_len).astype(np.uint32)
    found = lookups.stream(np.empty(0, np.uint32)).handoff(offsets, turn_start)
    unit = lookups.columns * lookups.rate

    def share(covered: U64, looked_at: U64, tokens: int) -> float:
        # What is not covered is counted, of all lookups: see sampling.
        return 1 - (int(looked_at.sum()) - int(covered.sum())) / max(tokens * unit, 1)

    tokens = int(lookups.decode[: offsets[-1]].sum())
    first = _first_answer_tokens(trace, session_count)
    return Coverage(
        prompt=share(found.prompt, found.lookups, tokens),
        prompt_and_answer=share(found.session, found.lookups, tokens),
        first_turn=share(found.first_prompt, found.first_lookups, first),
    )


def _first_answer_tokens(trace: Trace, session_count: int) -> int:
    answers = (trace.turn_role == Role.ASSISTANT) & (trace.turn_session < session_count) & (trace.turn_len > 0)
    _, first = np.unique(trace.turn_session[answers], return_index=True)
    return int(trace.turn_len[answers][first].sum())


@dataclass(frozen=True)
class HotSet:
    """Rows that other sessions used, and how the measured sessions use them.

    ranked  [rows of the fit] keys, most used first; ties in order of first use
    seen    [keys] bool, the fit used it
    """

    ranked: I64
    seen: npt.NDArray[np.bool_]

    @classmethod
    def fit(cls, lookups: Lookups, trace: Trace, sessions: I64) -> HotSet:
        counts = lookups.stream(one_by_one(trace, sessions)).counts(Phase.ALL)
        ranked = np.argsort(-counts.astype(np.int64), kind="stable")
        return cls(ranked[: int(np.count_nonzero(counts))], counts > 0)

    def outside(self, row_limit: int) -> U8:
        """[keys] uint8: 1 unless the key is among the row_limit most used."""
        outside = np.ones(len(self.seen), np.uint8)
        outside[self.ranked[:row_limit]] = 0
        return outside


@dataclass(frozen=True)
class Unseen:
    """Share of lookups whose row the fit never used, of the decode lookups and of all, and by n-gram order (decode)."""

    decode: float
    all: float
    decode_by_order: tuple[float, ...]


def unseen(lookups: Lookups, order: U32, seen: npt.NDArray[np.bool_]) -> Unseen:
    stream = lookups.stream(order)
    decode, everything = stream.counts(Phase.DECODE), stream.counts(Phase.ALL)
    decode_tokens = max(int(lookups.decode[order].sum()), 1)
    unit = lookups.rate * lookups.columns
    missing = np.bincount(lookups.class_of, weights=decode * ~seen, minlength=lookups.orders)
    return Unseen(
        decode=float(missing.sum()) / (decode_tokens * unit),
        all=int(everything[~seen].sum()) / (max(len(order), 1) * unit),
        decode_by_order=tuple(float(part) * lookups.orders / (decode_tokens * unit) for part in missing),
    )
