# SPDX-License-Identifier: Apache-2.0
"""Sessions as turns of tokens, and the requests that replay them.

A request stands for one recorded assistant turn; the server is told to answer with the recorded tokens. Turns are cut
to bounded lengths, so that a block is not all prefill: what a user brings along when it enters a session to its last
`history_tokens`, each later turn to its last `turn_tokens`, each answer to its first `output_tokens`. A prompt is
always the one before it, that one's answer and the new turn, so a server with a prefix cache prefills new tokens only.

Users run in a closed loop: each sends its next request when the last one has ended. Every arm of a round gets the
same users with the same requests in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.traces import Role

Tokens = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: tokens [n] uint32, template tokens included."""

    role: Role
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in order; `name` is unique in its workload."""

    name: str
    turns: tuple[Turn, ...]

    @property
    def answers(self) -> tuple[int, ...]:
        """Indices of the assistant turns that hold tokens and follow some: those that can be asked for."""
        found, before = [], 0
        for index, turn in enumerate(self.turns):
            if turn.role is Role.ASSISTANT and turn.tokens.size and before:
                found.append(index)
            before += turn.tokens.size
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """One request: prompt [n] and recorded answer [m], uint32; (session, turn_index) names it."""

    session: str
    turn_index: int
    prompt: Tokens
    answer: Tokens


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How much of each turn is replayed, in tokens."""

    history_tokens: int
    turn_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        for name in ("history_tokens", "turn_tokens", "output_tokens"):
            if (value := getattr(self, name)) < 2:
                raise ConfigError(f"{name.replace('_', ' ')}: {value}, expected at least 2")


def session_requests(session: Session, entry: int, limits: ReplayLimits) -> Iterator[ReplayRequest]:
    """Requests of a session from its `entry`-th answer on."""
    answers = session.answers[entry:]
    context = np.concatenate([turn.tokens for turn in session.turns[: answers[0]]])[-limits.history_tokens :]
    reached = answers[0]
    for turn_index in answers:
        new = [turn.tokens[-limits.turn_tokens :] for turn in session.turns[reached:turn_index]]
        context = np.concatenate([context, *new])
        answer = session.turns[turn_index].tokens[: limits.output_tokens]
        yield ReplayRequest(session.name, turn_index, context, answer)
        context = np.concatenate([context, answer])
        reached = turn_index + 1


class Workload:
    """Sessions that can be replayed, in a fixed order, dealt to users anew in each round."""

    def __init__(self, name: str, sessions: Sequence[Session]) -> None:
        """Raises ConfigError if no session holds an assistant turn with something before it."""
        self.name = name
        self.sessions = tuple(session for session in sessions if session.answers)
        if not self.sessions:
            raise ConfigError(f"{name}: no session has an assistant turn after another turn")

    @property
    def token_count(self) -> int:
        return sum(turn.tokens.size for session in self.sessions for turn in session.turns)

    def users(self, count: int, *, round_index: int, seed: int, limits: ReplayLimits) -> list[Iterator[ReplayRequest]]:
        """One endless stream of requests per user.

        Sessions are shuffled per round and dealt in turn. A user enters its first session at a random answer, as one
        would find a running service, and later ones at their start. With more users than sessions, sessions repeat.
        """
        rng = np.random.default_rng((seed, round_index))
        order = rng.permutation(len(self.sessions))
        entries = rng.random(count)
        return [self._user(order, index, count, float(entries[index]), limits) for index in range(count)]

    def _user(
        self, order: npt.NDArray[np.int64], first: int, stride: int, entry: float, limits: ReplayLimits
    ) -> Iterator[ReplayRequest]:
        position, is_first = first, True
        while True:
            session = self.sessions[order[position % len(order)]]
            yield from session_requests(session, int(entry * len(session.answers)) if is_first else 0, limits)
            position, is_first = position + stride, False
