# SPDX-License-Identifier: Apache-2.0
"""Reads workload traces: sessions of turns of token ids, in one .npz without pickles.

key                      dtype, shape    meaning
tokens                   u32 [N]         all sessions, concatenated
session_offsets          i64 [S+1]       session s is tokens[session_offsets[s]:session_offsets[s+1]]
turn_session             u32 [T]         session of turn t; turns are in session order and tile tokens without gaps
turn_role                u8 [T]          0 system, 1 user, 2 assistant, 3 tool
turn_start, turn_len     i64, u32 [T]    token range of the turn
vocab_size               i64             every token id is below it
session_source           u8 [S]          index into source_names; optional, with source_names
session_group            str [S]         project or topic; optional
session_name             str [S]         id in the source; optional
role_names               str [4]         optional; if there, it must name the roles as above

Assistant turns are decode, one token at a time; every other turn is prefill, new tokens only.
All of it is checked when it is loaded, so that what holds a Trace needs no checks of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.npz import Array, read_npz


class Role(IntEnum):
    """Who wrote a turn."""

    SYSTEM = 0
    USER = 1
    ASSISTANT = 2
    TOOL = 3


ROLE_NAMES: Final = tuple(role.name.lower() for role in Role)
_REQUIRED: Final = ("tokens", "session_offsets", "turn_session", "turn_role", "turn_start", "turn_len", "vocab_size")
_OPTIONAL: Final = ("session_source", "source_names", "session_group", "session_name", "role_names")


@dataclass(frozen=True)
class Turn:
    """One turn; `tokens` is a view into the trace."""

    role: Role
    start: int
    tokens: npt.NDArray[np.uint32]

    @property
    def is_decode(self) -> bool:
        return self.role is Role.ASSISTANT


@dataclass(frozen=True)
class Session:
    """One conversation; the n-gram history starts anew with it."""

    index: int
    name: str
    group: str
    source: str
    tokens: npt.NDArray[np.uint32]
    turns: tuple[Turn, ...]


@dataclass(frozen=True)
class Trace:
    """A checked trace; the fields are those of the file (module docstring)."""

    tokens: npt.NDArray[np.uint32]
    session_offsets: npt.NDArray[np.int64]
    turn_session: npt.NDArray[np.int64]
    turn_role: npt.NDArray[np.uint8]
    turn_start: npt.NDArray[np.int64]
    turn_len: npt.NDArray[np.int64]
    vocab_size: int
    session_source: npt.NDArray[np.int64]
    source_names: tuple[str, ...]
    session_group: tuple[str, ...]
    session_name: tuple[str, ...]

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a trace; raises ConfigError naming the key, what was found and what was expected."""
        arrays = read_npz(path, _REQUIRED, _OPTIONAL, what="trace")
        try:
            return cls(**_checked(arrays))
        except _BadTraceError as exc:
            raise ConfigError(f"trace {path}: {exc}") from exc

    @property
    def session_count(self) -> int:
        return len(self.session_offsets) - 1

    @property
    def decode_mask(self) -> npt.NDArray[np.bool_]:
        """[N] bool: the token was produced by decoding, so its lookups are on the latency-critical path."""
        return np.repeat(self.turn_role == Role.ASSISTANT, self.turn_len)

    def session(self, index: int) -> Session:
        first, end = int(self.session_offsets[index]), int(self.session_offsets[index + 1])
        turn_first, turn_end = np.searchsorted(self.turn_session, [index, index + 1])
        turns = tuple(self._turn(t) for t in range(int(turn_first), int(turn_end)))
        source = self.source_names[self.session_source[index]]
        return Session(
            index, self.session_name[index], self.session_group[index], source, self.tokens[first:end], turns
        )

    def sessions(self) -> Iterator[Session]:
        """All sessions in file order."""
        return (self.session(index) for index in range(self.session_count))

    def of_sources(self, sources: Sequence[str]) -> Self:
        """The sessions of these sources only; raises ConfigError for a source that the trace does not have."""
        unknown = [name for name in sources if name not in self.source_names]
        if unknown:
            raise ConfigError(f"source {unknown[0]}: not in this trace, which has {', '.join(self.source_names)}")
        wanted = [self.source_names.index(name) for name in sources]
        return self.select(np.flatnonzero(np.isin(self.session_source, wanted)))

    def joined(self, other: Trace) -> Trace:
        """The sessions of this trace, then those of the other; raises ConfigError if their vocabularies differ."""
        if other.vocab_size != self.vocab_size:
            raise ConfigError(
                f"two traces of different tokenizers: vocab_size {self.vocab_size} and {other.vocab_size}"
            )
        at = len(self.tokens)
        return Trace(
            tokens=np.concatenate([self.tokens, other.tokens]),
            session_offsets=np.concatenate([self.session_offsets, other.session_offsets[1:] + at]),
            turn_session=np.concatenate([self.turn_session, other.turn_session + self.session_count]),
            turn_role=np.concatenate([self.turn_role, other.turn_role]),
            turn_start=np.concatenate([self.turn_start, other.turn_start + at]),
            turn_len=np.concatenate([self.turn_len, other.turn_len]),
            vocab_size=self.vocab_size,
            session_source=np.concatenate([self.session_source, other.session_source + len(self.source_names)]),
            source_names=self.source_names + other.source_names,
            session_group=self.session_group + other.session_group,
            session_name=self.session_name + other.session_name,
        )

    def select(self, sessions: npt.NDArray[np.int64]) -> Self:
        """The given sessions, in the given order, as a trace of their own."""
        if len(sessions) == 0:
            raise ConfigError("no session is left of the trace")
        turns = ranges(*np.searchsorted(self.turn_session, [sessions, sessions + 1]))
        turn_len = self.turn_len[turns]
        lengths = np.diff(self.session_offsets)[sessions]
        starts = self.session_offsets[:-1][sessions]
        counts = np.bincount(self.turn_session, minlength=self.session_count)[sessions]
        return type(self)(
            tokens=self.tokens[ranges(starts, starts + lengths)],
            session_offsets=np.concatenate([[0], np.cumsum(lengths)]),
            turn_session=np.repeat(np.arange(len(sessions)), counts),
            turn_role=self.turn_role[turns],
            turn_start=np.concatenate([[0], np.cumsum(turn_len)[:-1]]),
            turn_len=turn_len,
            vocab_size=self.vocab_size,
            session_source=self.session_source[sessions],
            source_names=self.source_names,
            session_group=tuple(self.session_group[s] for s in sessions),
            session_name=tuple(self.session_name[s] for s in sessions),
        )

    def _turn(self, index: int) -> Turn:
        start = int(self.turn_start[index])
        return Turn(Role(int(self.turn_role[index])), start, self.tokens[start : start + int(self.turn_len[index])])


class _BadTraceError(ValueError):
    """What is wrong with a trace; load() adds the path."""


def ranges(starts: npt.NDArray[np.integer[Any]], ends: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """The indices of [starts[i], ends[i]) for all i, one range after the other."""
    lengths = ends - starts
    skipped = starts - np.concatenate([[0], np.cumsum(lengths)[:-1]])
    indices: npt.NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(skipped, lengths)
    return indices


def _checked(arrays: dict[str, Array]) -> dict[str, Any]:
    """The fields of a Trace, from arrays that may hold anything."""
    tokens = arrays["tokens"]
    vocab = arrays["vocab_size"]
    if vocab.ndim != 0 or vocab.dtype.kind not in "iu" or not 0 < int(vocab) <= 2**32:
        raise _BadTraceError("vocab_size: expected one positive integer")
    _expect(tokens.ndim == 1 and tokens.dtype == np.uint32, "tokens", tokens, "one dimension of uint32")
    if tokens.size == 0:
        raise _BadTraceError("tokens: empty")
    if int(tokens.max()) >= int(vocab):
        raise _BadTraceError(f"tokens: id {int(tokens.max())}, vocab_size is {int(vocab)}")
    offsets = _integers(arrays, "session_offsets")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) <= 0).any():
        raise _BadTraceError(f"session_offsets: expected rising values from 0 to {len(tokens)}")
    fields: dict[str, Any] = {"tokens": tokens, "session_offsets": offsets, "vocab_size": int(vocab)}
    fields |= _checked_turns(arrays, offsets)
    return fields | _checked_labels(arrays, len(offsets) - 1)


def _checked_turns(arrays: dict[str, Array], offsets: npt.NDArray[np.int64]) -> dict[str, Any]:
    session, start, length = (_integers(arrays, key) for key in ("turn_session", "turn_start", "turn_len"))
    role = _integers(arrays, "turn_role")
    if not len(session) == len(start) == len(length) == len(role):
        raise _BadTraceError(
            f"turns: {len(session)} sessions, {len(role)} roles, {len(start)} starts, {len(length)} lengths"
        )
    if len(role) == 0 or (role < 0).any() or (role >= len(Role)).any():
        raise _BadTraceError(
            f"turn_role: expected 0 to {len(Role) - 1} ({', '.join(ROLE_NAMES)}) for at least one turn"
        )
    # A length is bounded before it is added up, so that no sum can wrap around.
    total = int(offsets[-1])
    bad = np.flatnonzero((length < 0) | (length > total) | (start < 0) | (start > total))
    if bad.size == 0:
        bad = np.flatnonzero(np.concatenate([[0], (start + length)[:-1]]) != start)
    if bad.size or start[-1] + length[-1] != total:
        at = int(bad[0]) if bad.size else len(start) - 1
        raise _BadTraceError(f"turn {at}: [{start[at]}, +{length[at]}) does not tile the {total} tokens without a gap")
    if (session < 0).any() or (session >= len(offsets) - 1).any() or (np.diff(session) < 0).any():
        raise _BadTraceError(f"turn_session: expected rising values below {len(offsets) - 1}")
    crosses = np.flatnonzero((start < offsets[session]) | (start + length > offsets[session + 1]))
    if crosses.size:
        raise _BadTraceError(f"turn {int(crosses[0])}: not inside its session {int(session[crosses[0]])}")
    names = arrays.get("role_names")
    if names is not None and tuple(map(str, names.ravel())) != ROLE_NAMES:
        raise _BadTraceError(f"role_names: {names.ravel().tolist()}, expected {list(ROLE_NAMES)}")
    return {"turn_session": session, "turn_role": role.astype(np.uint8), "turn_start": start, "turn_len": length}


def _checked_labels(arrays: dict[str, Array], session_count: int) -> dict[str, Any]:
    names = _strings(arrays, "source_names", None) or ("trace",)
    if "session_source" in arrays and "source_names" not in arrays:
        raise _BadTraceError("session_source: there, but no source_names")
    has_sources = "session_source" in arrays
    source = _integers(arrays, "session_source") if has_sources else np.zeros(session_count, np.int64)
    if len(source) != session_count or (source < 0).any() or (source >= len(names)).any():
        raise _BadTraceError(f"session_source: expected {session_count} values below {len(names)}")
    return {
        "session_source": source,
        "source_names": names,
        "session_group": _strings(arrays, "session_group", session_count) or ("",) * session_count,
        "session_name": _strings(arrays, "session_name", session_count)
        or tuple(str(index) for index in range(session_count)),
    }


def _expect(holds: bool, key: str, array: Array, expected: str) -> None:
    if not holds:
        raise _BadTraceError(f"{key}: shape {array.shape} of {array.dtype}, expected {expected}")


def _integers(arrays: dict[str, Array], key: str) -> npt.NDArray[np.int64]:
    array = arrays[key]
    _expect(array.ndim == 1 and array.dtype.kind in "iu", key, array, "one dimension of integers")
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise _BadTraceError(f"{key}: {int(array.max())} is out of range")
    return array.astype(np.int64)


def _strings(arrays: dict[str, Array], key: str, count: int | None) -> tuple[str, ...]:
    if key not in arrays:
        return ()
    array = arrays[key]
    _expect(array.ndim == 1 and array.dtype.kind == "U", key, array, "one dimension of strings")
    if count is not None and len(array) != count:
        raise _BadTraceError(f"{key}: {len(array)} values, expected {count}")
    return tuple(map(str, array))
