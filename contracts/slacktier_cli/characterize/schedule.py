# SPDX-License-Identifier: Apache-2.0
"""In which order a server with many open sessions uses a trace's tokens.

Sessions are shuffled and dealt to slots. In each round every slot prefills what is pending and then decodes one token,
slot by slot; a round is one step of the engine. A finished session is replaced by the next one in the round after it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.traces import Trace, ranges

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Schedule:
    """Token positions in order of use, cut into steps.

    order          [tokens] uint32
    steps          [steps + 1] int64; step i is order[steps[i]:steps[i + 1]], never empty
    decode_tokens  [steps] int64, tokens decoded in each step
    slots          sessions open at a time
    """

    order: npt.NDArray[np.uint32]
    steps: I64
    decode_tokens: I64
    slots: int

    def full_steps(self) -> npt.NDArray[np.bool_]:
        """[steps] bool: steps with at least 9/10 of the decode tokens of a usual step.

        The usual step is the one that a token finds itself in. The last steps of a trace, in which the longest
        sessions run out one by one, are left out; so are steps in which most sessions are idle.
        """
        usual = np.average(self.decode_tokens, weights=self.decode_tokens) if self.decode_tokens.any() else 0.0
        return (self.decode_tokens > 0) & (self.decode_tokens >= 0.9 * usual)

    @property
    def decode_tokens_per_step(self) -> float:
        """Mean over full steps; 0.0 for a trace without decode tokens."""
        full = self.full_steps()
        return float(self.decode_tokens[full].mean()) if full.any() else 0.0


def interleave(trace: Trace, sessions: I64, *, slots: int, seed: int, idle_steps: float = 0.0) -> Schedule:
    """The schedule of these sessions.

    slots       sessions open at a time
    seed        of the shuffle, numpy default_rng(seed).permutation, and of the idle gaps
    idle_steps  mean length of the pause (tools run, a user reads) before each turn that follows an answer,
                exponential; the session keeps its slot meanwhile
    raises      ConfigError if there are fewer sessions than slots
    """
    if not 0 < slots <= len(sessions):
        raise ConfigError(f"{slots} sessions at a time, the trace has {len(sessions)}")
    shuffled = sessions[np.random.default_rng(seed).permutation(len(sessions))]
    runs = _runs(trace, shuffled)
    rounds = _rounds(runs, np.random.default_rng([seed, 1]), idle_steps)
    slot_of, start_of = _deal(rounds[runs.last_of_session] + 1, slots)
    when = start_of[runs.session] + rounds
    by_time = np.argsort(when * slots + slot_of[runs.session])
    order = runs.positions[ranges(runs.first[by_time], runs.end[by_time])]
    when = when[by_time]
    step_starts = np.flatnonzero(np.concatenate([[True], when[1:] != when[:-1]]))
    edges = np.concatenate([[0], np.cumsum((runs.end - runs.first)[by_time])])
    return Schedule(
        order=order.astype(np.uint32),
        steps=edges[np.append(step_starts, len(when))],
        decode_tokens=np.add.reduceat(runs.decodes[by_time].astype(np.int64), step_starts),
        slots=slots,
    )


def one_by_one(trace: Trace, sessions: I64) -> npt.NDArray[np.uint32]:
    """The positions of these sessions, one session after the other."""
    return ranges(trace.session_offsets[sessions], trace.session_offsets[sessions + 1]).astype(np.uint32)


@dataclass(frozen=True)
class _Runs:
    """What each session does in each of its rounds: pending prefill, then one decoded token.

    positions        tokens of the sessions, one session after the other
    first, end       [runs] index into positions
    session          [runs] index of the session, as dealt
    decodes          [runs] bool, ends with a decoded token; false for a last prompt that nobody answered
    opens_turn       [runs] bool, begins with a prompt that follows an answer
    last_of_session  [sessions] index of each session's last run
    """

    positions: I64
    first: I64
    end: I64
    session: I64
    decodes: npt.NDArray[np.bool_]
    opens_turn: npt.NDArray[np.bool_]
    last_of_session: I64


def _runs(trace: Trace, sessions: I64) -> _Runs:
    lengths = trace.session_offsets[sessions + 1] - trace.session_offsets[sessions]
    positions = ranges(trace.session_offsets[sessions], trace.session_offsets[sessions + 1])
    decode = trace.decode_mask[positions]
    session_end = np.cumsum(lengths)
    ends_run = decode.copy()
    ends_run[session_end - 1] = True
    end = np.flatnonzero(ends_run) + 1
    first = np.concatenate([[0], end[:-1]])
    last = np.searchsorted(end, session_end)
    counts = np.diff(np.concatenate([[-1], last]))
    session = np.repeat(np.arange(len(sessions)), counts)
    starts_session = np.zeros(len(end), np.bool_)
    starts_session[np.concatenate([[0], last[:-1] + 1])] = True
    return _Runs(positions, first, end, session, decode[end - 1], ~decode[first] & ~starts_session, last)


def _rounds(runs: _Runs, random: np.random.Generator, idle_steps: float) -> I64:
    """The round of each run, counted from its session's first; idle gaps come before a turn that follows an answer."""
    starts = np.concatenate([[0], runs.last_of_session[:-1] + 1])
    elapsed = np.arange(len(runs.first))
    if idle_steps > 0:
        gaps = np.zeros(len(runs.first), np.int64)
        gaps[runs.opens_turn] = random.exponential(idle_steps, int(runs.opens_turn.sum())).astype(np.int64)
        elapsed = elapsed + np.cumsum(gaps)
    # A session's first run opens no turn after an answer, so it adds no gap of its own to what is taken off here.
    rounds: I64 = elapsed - elapsed[starts][runs.session]
    return rounds


def _deal(rounds_of: Iterable[int], slots: int) -> tuple[I64, I64]:
    """(slot, first round) of each session: each goes to the slot that is free first, the lowest of those."""
    free = [(0, slot) for slot in range(slots)]
    dealt = []
    for rounds in rounds_of:
        start, slot = free[0]
        heapq.heapreplace(free, (start + int(rounds), slot))
        dealt.append((slot, start))
    slot_of, start_of = np.array(dealt, np.int64).T
    return slot_of, start_of
