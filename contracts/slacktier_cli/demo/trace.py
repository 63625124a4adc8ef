# SPDX-License-Identifier: Apache-2.0
"""Token files: recorded sessions as .npz -> Session. Everything in the file is checked before it is used.

Arrays, all without pickles: tokens u32 [N]; session_offsets i64 [S+1]; turn_session u32, turn_role u8, turn_start i64,
turn_len u32, each [T], in session order, tiling `tokens` without gaps; vocab_size. Optional: session_name str [S].
Roles: 0 system, 1 user, 2 assistant (decoded), 3 tool.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.demo.sessions import Role, Session, Tokens, Turn

_KINDS: Final = {
    "tokens": "u", "session_offsets": "iu", "turn_session": "iu", "turn_role": "iu", "turn_start": "iu",
    "turn_len": "iu",
}  # fmt: skip
_NAME: Final = "session_name"


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """A checked token file; the arrays are read-only views of one load."""

    path: Path
    tokens: Tokens
    session_offsets: npt.NDArray[np.int64]
    turn_role: npt.NDArray[np.int64]
    turn_start: npt.NDArray[np.int64]
    turn_end: npt.NDArray[np.int64]
    turn_bounds: npt.NDArray[np.int64]  # [S+1]: turns of session s are [turn_bounds[s], turn_bounds[s+1])
    names: tuple[str, ...]

    def session(self, index: int) -> Session:
        """One session; its turns' tokens are views."""
        turns = tuple(
            Turn(Role(int(self.turn_role[t])), self.tokens[self.turn_start[t] : self.turn_end[t]])
            for t in range(self.turn_bounds[index], self.turn_bounds[index + 1])
        )
        return Session(self.names[index], turns)

    def sessions(self) -> list[Session]:
        return [self.session(index) for index in range(len(self.names))]


def load_trace(path: Path, *, vocab_size: int) -> TokenTrace:
    """Read and check a token file; raises ConfigError naming the file, what was found and what was expected.

    vocab_size  of the tokenizer whose ids the row ids are made from; a file made with another one is refused
    """
    arrays = _read_arrays(path)
    found_vocab = _scalar(path, arrays, "vocab_size")
    if found_vocab != vocab_size:
        raise _bad(path, f"vocab_size {found_vocab}, expected {vocab_size}", "tokenize the sessions anew")
    flat = {name: _vector(path, arrays, name, kinds) for name, kinds in _KINDS.items()}
    _check_tokens(path, flat["tokens"], vocab_size)
    offsets = flat["session_offsets"].astype(np.int64)
    _check_offsets(path, offsets, flat["tokens"].size)
    bounds = _check_turns(path, flat, offsets)
    start = flat["turn_start"].astype(np.int64)
    return TokenTrace(
        path=path,
        tokens=flat["tokens"].astype(np.uint32, copy=False),
        session_offsets=offsets,
        turn_role=flat["turn_role"].astype(np.int64),
        turn_start=start,
        turn_end=start + flat["turn_len"].astype(np.int64),
        turn_bounds=bounds,
        names=_names(path, arrays, offsets.size - 1),
    )


def _bad(
    path: Path, what: str, hint: str = "the token file's format is described by `slacktier demo --help`"
) -> ConfigError:
    return ConfigError(f"{path}: {what}", hint=hint)


def _read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    wanted = (*_KINDS, "vocab_size")
    try:
        # numpy leaves a file that it opened by name open when it cannot make sense of it.
        with path.open("rb") as file, _archive(file) as archive:
            missing = [name for name in wanted if name not in archive.files]
            if missing:
                raise _bad(path, f"no array named {', '.join(missing)}")
            return {name: archive[name] for name in (*wanted, _NAME) if name in archive.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as exc:
        raise _bad(path, f"not a readable token file: {exc}") from exc
    except MemoryError as exc:
        raise _bad(path, "an array is too large for this machine's memory") from exc


def _archive(file: IO[bytes]) -> np.lib.npyio.NpzFile:
    if not zipfile.is_zipfile(file):
        raise zipfile.BadZipFile("not an .npz archive")
    file.seek(0)
    archive = np.load(file, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise zipfile.BadZipFile("one array, expected an .npz archive")
    return archive


def _vector(path: Path, arrays: dict[str, npt.NDArray[Any]], name: str, kinds: str) -> npt.NDArray[Any]:
    array = arrays[name]
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise _bad(path, f"{name}: {array.ndim} dimensions of {array.dtype}, expected one of integers")
    return array


def _scalar(path: Path, arrays: dict[str, npt.NDArray[Any]], name: str) -> int:
    array = arrays[name]
    if array.size != 1 or array.dtype.kind not in "iu":
        raise _bad(path, f"{name}: shape {array.shape} of {array.dtype}, expected one integer")
    return int(array.reshape(()))


def _check_tokens(path: Path, tokens: npt.NDArray[Any], vocab_size: int) -> None:
    if tokens.size == 0:
        raise _bad(path, "it holds no tokens")
    largest = int(tokens.max())
    if largest >= vocab_size:
        where = int(tokens.argmax())
        raise _bad(path, f"tokens[{where}] is {largest}, expected less than the vocabulary's {vocab_size}")


def _check_offsets(path: Path, offsets: npt.NDArray[np.int64], token_count: int) -> None:
    if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != token_count:
        raise _bad(path, f"session_offsets: expected at least 2 values from 0 to {token_count}")
    if (np.diff(offsets) < 0).any():
        where = int(np.argmax(np.diff(offsets) < 0))
        raise _bad(path, f"session_offsets[{where + 1}] is less than the one before")


def _check_turns(
    path: Path, flat: dict[str, npt.NDArray[Any]], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Turns tile the tokens in session order; returns turn bounds per session [S+1]."""
    role, session = flat["turn_role"], flat["turn_session"].astype(np.int64)
    start, length = flat["turn_start"].astype(np.int64), flat["turn_len"].astype(np.int64)
    sizes = {name: flat[name].size for name in ("turn_session", "turn_role", "turn_start", "turn_len")}
    if len(set(sizes.values())) != 1 or role.size == 0:
        raise _bad(path, f"turn arrays of {sizes} values, expected equal numbers and at least one")
    session_count = offsets.size - 1
    wrong_role = (role < 0) | (role > max(Role))
    wrong_session = (session < 0) | (session >= session_count)
    end = start + length
    expected_start = np.concatenate(([0], end[:-1]))
    wrong_tile = (start != expected_start) | (length < 0)
    for name, wrong in (("turn_role", wrong_role), ("turn_session", wrong_session), ("turn_start", wrong_tile)):
        if wrong.any():
            where = int(np.argmax(wrong))
            raise _bad(path, f"{name}[{where}] is {flat[name][where]}: {_EXPECTED[name]}")
    outside = (start < offsets[session]) | (end > offsets[session + 1])
    if outside.any() or (np.diff(session) < 0).any() or end[-1] != offsets[-1]:
        raise _bad(path, "turns do not tile their sessions in order")
    return np.searchsorted(session, np.arange(session_count + 1)).astype(np.int64)


_EXPECTED: Final = {
    "turn_role": "expected 0 to 3",
    "turn_session": "there is no such session",
    "turn_start": "expected the end of the turn before it",
}


def _names(path: Path, arrays: dict[str, npt.NDArray[Any]], count: int) -> tuple[str, ...]:
    names = arrays.get(_NAME)
    if names is None:
        return tuple(f"session-{index}" for index in range(count))
    if names.ndim != 1 or names.size != count or names.dtype.kind != "U":
        raise _bad(path, f"{_NAME}: shape {names.shape} of {names.dtype}, expected {count} strings")
    return tuple(f"{index}:{name}" for index, name in enumerate(names.tolist()))
