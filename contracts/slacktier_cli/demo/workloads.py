# SPDX-License-Identifier: Apache-2.0
"""Finds the workload that a run asks for and describes it for the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier_cli.demo.conversations import load_conversations
from slacktier_cli.demo.rendering import Encode
from slacktier_cli.demo.sessions import ReplayLimits, Session, Turn, Workload
from slacktier_cli.demo.stdlib_text import stdlib_sessions
from slacktier_cli.traces import Trace

_STDLIB_SESSIONS_MIN: Final = 48
_STDLIB_SESSIONS_PER_USER: Final = 3  # so that users of one block rarely meet in one session
_ARRAYS: Final = ".npz"
_CONVERSATIONS: Final = (".jsonl", ".json")


def check_trace(trace: Path) -> None:
    """Raises ConfigError for a path that cannot be a workload, before anything else is done."""
    if trace.suffix not in (_ARRAYS, *_CONVERSATIONS):
        raise ConfigError(
            f"--trace {trace}: expected a token file (.npz) or conversations, one per line (.jsonl)",
            hint="`slacktier demo --help` describes both",
        )
    if not trace.is_file():
        raise ConfigError(f"--trace {trace}: no such file")


def load_workload(trace: Path | None, *, users: int, seed: int, encode: Encode, vocab_size: int) -> Workload:
    """Sessions of the file, or of the standard library where there is none; raises ConfigError."""
    if trace is None:
        count = max(_STDLIB_SESSIONS_MIN, _STDLIB_SESSIONS_PER_USER * users)
        return Workload("sessions about the Python standard library", stdlib_sessions(count, seed=seed, encode=encode))
    if trace.suffix == _ARRAYS:
        return Workload(f"sessions of {trace.name}", _token_sessions(trace, vocab_size))
    return Workload(f"conversations of {trace.name}", load_conversations(trace, encode))


def _token_sessions(path: Path, vocab_size: int) -> list[Session]:
    trace = Trace.load(path)
    if trace.vocab_size != vocab_size:
        raise ConfigError(
            f"trace {path}: vocab_size {trace.vocab_size}, the model's tokenizer has {vocab_size}",
            hint="row ids are made from this model's token ids; tokenize the sessions anew",
        )
    return [
        Session(f"{session.index}:{session.name}", tuple(Turn(turn.role, turn.tokens) for turn in session.turns))
        for session in trace.sessions()
    ]


def describe_workload(workload: Workload, limits: ReplayLimits) -> dict[str, Any]:
    """For the report: what it is, how much of it there is, how its turns are cut."""
    return {
        "name": workload.name,
        "sessions": len(workload.sessions),
        "tokens": workload.token_count,
        "history_tokens": limits.history_tokens,
        "turn_tokens": limits.turn_tokens,
        "output_tokens": limits.output_tokens,
        "limits": (
            f"a user enters a session with its last {limits.history_tokens} tokens; later turns are cut to "
            f"{limits.turn_tokens} tokens and answers to {limits.output_tokens}"
        ),
    }
