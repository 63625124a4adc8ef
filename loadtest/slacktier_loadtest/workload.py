# SPDX-License-Identifier: Apache-2.0
"""From recorded sessions to scripts: which sessions, how they are cut, who sends them and when; fixed by the seed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slacktier.errors import ConfigError
from slacktier_cli.demo.sessions import ReplayLimits, Session, Tokens, Turn, Workload
from slacktier_cli.demo.workloads import check_trace, load_workload
from slacktier_cli.traces import Role, Trace
from slacktier_loadtest.scenario import Scenario, WorkloadSpec
from slacktier_loadtest.script import SessionScript, TurnScript, message_json
from slacktier_rowids.tokenizer import V4Tokenizer

_FIRST_OWN_TOKEN: Final = 2000  # an ordinary id, as are those after it
TRACES_VARIABLE: Final = "SLACKTIER_TRACES"
_CHAT_ROLES: Final = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "assistant", Role.TOOL: "user"}
Users = tuple[tuple[SessionScript, ...], ...]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a block whose requests are all sent before the next part begins; a block has one unless it says so."""

    name: str
    users: Users


@dataclass(frozen=True, slots=True)
class Prepared:
    """Phases in order, and for the report what they were made of."""

    phases: tuple[Phase, ...]
    description: str

    @property
    def request_count(self) -> int:
        return sum(len(session.turns) for phase in self.phases for user in phase.users for session in user)


def prepare(scenario: Scenario, trace: Path | None, *, seed: int, is_chat: bool) -> Prepared:
    """Everything that a block sends; raises ConfigError.

    trace    instead of the scenario's own
    is_chat  messages for /v1/chat/completions instead of token ids for /v1/completions
    """
    workload = _load(scenario, trace, seed)
    rng = np.random.default_rng((seed, len("loadtest")))
    pieces = _chat_pieces() if is_chat else _id_pieces
    if scenario.prefill is not None:
        return Prepared(_prefill_phases(scenario, workload, pieces, rng), f"prompts cut from {workload.name}")
    order = rng.permutation(len(workload.sessions))
    count = scenario.workload.sessions
    chosen = [workload.sessions[order[index % len(order)]] for index in range(count)]
    scripts = [
        _session_script(session, f"{index}:{session.name}", scenario, pieces, rng)
        for index, session in enumerate(chosen)
    ]
    users = _dealt(scripts, scenario, rng)
    spec = scenario.workload
    return Prepared(
        (Phase("", users),),
        f"{count} of {workload.name}, up to {spec.turns_max} turns each; a session is entered with up to "
        f"{spec.history_tokens} tokens, turns are cut to {spec.turn_tokens}, answers to {spec.output_tokens}",
    )


def _load(scenario: Scenario, trace: Path | None, seed: int) -> Workload:
    tokenizer = V4Tokenizer.load()
    found = trace or _trace_of(scenario.workload)
    if found is not None:
        check_trace(found)
    users = scenario.workload.sessions // 3 + 1
    workload = load_workload(
        found, users=users, seed=seed, encode=tokenizer.encode, vocab_size=tokenizer.vocab_size
    )  # fmt: skip
    if found is None or not scenario.workload.source or found.suffix != ".npz":
        return workload
    kept = Trace.load(found).of_sources([scenario.workload.source])
    names = {f"{name}" for name in kept.session_name}
    sessions = [each for each in workload.sessions if each.name.split(":", 1)[1] in names]
    return Workload(f"{workload.name}, {scenario.workload.source}", sessions)


def _trace_of(spec: WorkloadSpec) -> Path | None:
    """The scenario's trace where it is there; without a directory of traces the built-in text stands in."""
    directory = os.environ.get(TRACES_VARIABLE)
    if not spec.trace or not directory:
        return None
    return Path(directory) / spec.trace


Pieces = Callable[[Sequence[Turn]], str]


def _id_pieces(turns: Sequence[Turn]) -> str:
    return ",".join(str(token) for turn in turns for token in turn.tokens.tolist())


def _chat_pieces() -> Pieces:
    tokenizer = V4Tokenizer.load()
    special = set(tokenizer.special_ids.values())

    def pieces(turns: Sequence[Turn]) -> str:
        texts = (tokenizer.decode([t for t in turn.tokens.tolist() if t not in special]) for turn in turns)
        roles = (_CHAT_ROLES[turn.role] for turn in turns)
        return ",".join(message_json(role, text) for role, text in zip(roles, texts, strict=True) if text)

    return pieces


def _cut(turns: Sequence[Turn], last: int) -> list[Turn]:
    """The last tokens of the turns taken together, as turns."""
    kept: list[Turn] = []
    for turn in reversed(turns):
        if last <= 0:
            break
        kept.append(Turn(turn.role, turn.tokens[-last:]))
        last -= turn.tokens.size
    return kept[::-1]


def _session_script(
    session: Session, name: str, scenario: Scenario, pieces: Pieces, rng: np.random.Generator
) -> SessionScript:
    """A session from its first answer on."""
    spec = scenario.workload
    limits = ReplayLimits(spec.history_tokens, spec.turn_tokens, max(2, spec.output_tokens))
    reached, turns = 0, []
    for number, at in enumerate(session.answers[: spec.turns_max]):
        new = session.turns[reached:at]
        cut = _cut(new, limits.history_tokens) if number == 0 else [
            Turn(turn.role, turn.tokens[-limits.turn_tokens :]) for turn in new
        ]  # fmt: skip
        recorded = session.turns[at]
        answer = Turn(recorded.role, recorded.tokens[: spec.output_tokens])
        pause = float(rng.uniform(*scenario.pause_s)) if number else 0.0
        turns.append(TurnScript(pieces(cut), pieces([answer]), int(answer.tokens.size), pause))
        reached = at + 1
    return SessionScript(name, tuple(turn for turn in turns if turn.new))


def _dealt(scripts: Sequence[SessionScript], scenario: Scenario, rng: np.random.Generator) -> Users:
    """Closed loop: user u has sessions u, u + B, ...; open loop: each session is a user that arrives in its time."""
    if scenario.load.users is not None:
        count = min(scenario.load.users, len(scripts))
        return tuple(tuple(scripts[index::count]) for index in range(count))
    arrivals = np.cumsum(rng.exponential(1.0 / (scenario.load.rate_per_s or 1.0), len(scripts)))
    return tuple(
        (SessionScript(script.name, script.turns, float(start)),)
        for script, start in zip(scripts, arrivals, strict=True)
    )


def _prefill_phases(
    scenario: Scenario, workload: Workload, pieces: Pieces, rng: np.random.Generator
) -> tuple[Phase, ...]:
    """Prompts cut from the sessions' tokens laid end to end; each begins with a token of its own, so none is known."""
    prefill = scenario.prefill
    if prefill is None:
        raise ConfigError("scenario: it has no prefill phases")
    tokens = np.concatenate([turn.tokens for session in workload.sessions for turn in session.turns])
    tokens = tokens[tokens > 2]  # without the marks at which a model forgets what was before
    if max(prefill.prompt_tokens) > tokens.size:
        raise ConfigError(f"prefill: {max(prefill.prompt_tokens)} tokens per prompt, {workload.name} has {tokens.size}")
    firsts = itertools.count(_FIRST_OWN_TOKEN)
    return tuple(
        Phase(
            f"{length} tokens, {together} at a time",
            tuple(
                tuple(
                    _prompt(tokens, length, next(firsts), f"{user}:{repeat}", scenario, pieces, rng)
                    for repeat in range(prefill.repeats)
                )
                for user in range(together)
            ),
        )
        for length in prefill.prompt_tokens
        for together in prefill.together
    )


def _prompt(
    tokens: Tokens, length: int, first: int, name: str, scenario: Scenario, pieces: Pieces, rng: np.random.Generator
) -> SessionScript:
    output_tokens = scenario.workload.output_tokens
    at = int(rng.integers(0, tokens.size))
    prompt = np.take(tokens, np.arange(at, at + length), mode="wrap")
    prompt[0] = first
    answer = np.take(tokens, np.arange(at + length, at + length + output_tokens), mode="wrap")
    said = [pieces([Turn(role, part)]) for role, part in ((Role.USER, prompt), (Role.ASSISTANT, answer))]
    return SessionScript(name, (TurnScript(said[0], said[1], output_tokens),))
