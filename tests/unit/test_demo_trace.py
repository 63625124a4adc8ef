# SPDX-License-Identifier: Apache-2.0
"""Token files are read as recorded, or refused in one line before anything else happens."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktier.errors import ConfigError
from slacktier_cli.demo.sessions import Role
from slacktier_cli.demo.trace import load_trace

VOCAB = 100


def arrays() -> dict[str, Any]:
    """Two sessions: user 0-2, assistant 3-4, tool 5-6; user 7, assistant 8-9."""
    return {
        "tokens": np.arange(10, dtype=np.uint32),
        "session_offsets": np.array([0, 7, 10], np.int64),
        "turn_session": np.array([0, 0, 0, 1, 1], np.uint32),
        "turn_role": np.array([1, 2, 3, 1, 2], np.uint8),
        "turn_start": np.array([0, 3, 5, 7, 8], np.int64),
        "turn_len": np.array([3, 2, 2, 1, 2], np.uint32),
        "session_name": np.array(["a", "b"]),
        "vocab_size": np.int64(VOCAB),
    }


def write(path: Path, **changes: Any) -> Path:
    np.savez(path, **{name: value for name, value in {**arrays(), **changes}.items() if value is not None})
    return path


def test_sessions_come_back_turn_by_turn(tmp_path: Path) -> None:
    first, second = load_trace(write(tmp_path / "t.npz"), vocab_size=VOCAB).sessions()
    assert [(turn.role, turn.tokens.tolist()) for turn in first.turns] == [
        (Role.USER, [0, 1, 2]),
        (Role.ASSISTANT, [3, 4]),
        (Role.TOOL, [5, 6]),
    ]
    assert (second.name, second.answers) == ("1:b", (1,))


def test_names_may_be_missing(tmp_path: Path) -> None:
    trace = load_trace(write(tmp_path / "t.npz", session_name=None), vocab_size=VOCAB)
    assert trace.names == ("session-0", "session-1")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"tokens": None}, "no array named tokens"),
        ({"turn_len": None, "turn_role": None}, "no array named turn_role, turn_len"),
        ({"tokens": np.zeros((2, 5), np.uint32)}, "tokens: 2 dimensions"),
        ({"tokens": np.zeros(10, np.float32)}, "tokens: 1 dimensions of float32"),
        ({"tokens": np.array([], np.uint32)}, "it holds no tokens"),
        ({"tokens": np.array([*range(9), VOCAB], np.uint32)}, "tokens[9] is 100, expected less than"),
        ({"tokens": np.array([object()] * 10)}, "not a readable token file"),
        ({"vocab_size": np.int64(99)}, "vocab_size 99, expected 100"),
        ({"vocab_size": np.array([1, 2])}, "vocab_size: shape (2,)"),
        ({"session_offsets": np.array([0, 7, 9], np.int64)}, "session_offsets: expected at least 2 values"),
        ({"session_offsets": np.array([0, 11, 10], np.int64)}, "session_offsets[2] is less"),
        ({"session_offsets": np.array([0], np.int64)}, "session_offsets: expected at least 2 values"),
        ({"turn_role": np.array([1, 2, 4, 1, 2], np.uint8)}, "turn_role[2] is 4: expected 0 to 3"),
        ({"turn_session": np.array([0, 0, 0, 1, 2], np.uint32)}, "turn_session[4] is 2: there is no such session"),
        ({"turn_session": np.array([0, 0, 1, 1, 1], np.uint32)}, "turns do not tile their sessions"),
        ({"turn_start": np.array([0, 3, 6, 7, 8], np.int64)}, "turn_start[2] is 6: expected the end of the turn"),
        ({"turn_len": np.array([3, 2, 2, 1, 1], np.uint32)}, "turns do not tile"),
        ({"turn_len": np.array([3, 2, 2, 1], np.uint32)}, "expected equal numbers"),
        ({"session_name": np.array(["a"])}, "session_name: shape (1,)"),
    ],
)
def test_bad_token_file_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    path = write(tmp_path / "t.npz", **changes)
    with pytest.raises(ConfigError, match=r"t\.npz: ") as caught:
        load_trace(path, vocab_size=VOCAB)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("version https://git-lfs.github.com/spec/v1\n")
    np.save(tmp_path / "one.npy", np.arange(3))
    for name in ("missing.npz", "text.npz", "one.npy"):
        with pytest.raises(ConfigError, match=name):
            load_trace(tmp_path / name, vocab_size=VOCAB)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.booleans())
def test_damaged_token_file_is_read_whole_or_refused(tmp_path: Path, at: int, bit: int, cut: bool) -> None:
    raw = bytearray(write(tmp_path / "t.npz").read_bytes())
    at %= len(raw)
    raw[at] ^= 1 << bit
    (tmp_path / "bad.npz").write_bytes(raw[:at] if cut else raw)
    try:
        load_trace(tmp_path / "bad.npz", vocab_size=VOCAB).sessions()
    except ConfigError:
        return
    assert not cut
