# SPDX-License-Identifier: Apache-2.0
"""Trace files: what a good one gives back, and one clear line for each kind of bad one."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slacktier.errors import ConfigError
from slacktier_cli.traces import Role, Trace


def good_arrays() -> dict[str, Any]:
    """Two sessions: user, assistant, tool, assistant; and user, assistant, user that nobody answered."""
    return {
        "tokens": np.arange(20, dtype=np.uint32),
        "session_offsets": np.array([0, 12, 20], np.int64),
        "turn_session": np.array([0, 0, 0, 0, 1, 1, 1], np.uint32),
        "turn_role": np.array([1, 2, 3, 2, 1, 2, 1], np.uint8),
        "turn_start": np.array([0, 5, 7, 10, 12, 15, 18], np.int64),
        "turn_len": np.array([5, 2, 3, 2, 3, 3, 2], np.uint32),
        "vocab_size": np.int64(20),
        "session_source": np.array([0, 1], np.uint8),
        "source_names": np.array(["agents", "chats"]),
        "session_group": np.array(["a/b", "chats"]),
        "session_name": np.array(["first", "second"]),
        "role_names": np.array(["system", "user", "assistant", "tool"]),
    }


def write(path: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_sessions_and_turns_come_back_as_written(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "t.npz", good_arrays()))
    first, second = trace.sessions()
    assert (first.name, first.group, first.source) == ("first", "a/b", "agents")
    assert [turn.role for turn in first.turns] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [turn.is_decode for turn in second.turns] == [False, True, False]
    assert second.tokens.tolist() == list(range(12, 20))
    assert second.turns[1].tokens.tolist() == [15, 16, 17]


def test_decode_mask_marks_the_assistant_tokens(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "t.npz", good_arrays()))
    assert np.flatnonzero(trace.decode_mask).tolist() == [5, 6, 10, 11, 15, 16, 17]


def test_labels_may_be_left_out(tmp_path: Path) -> None:
    arrays = good_arrays()
    for key in ("session_source", "source_names", "session_group", "session_name", "role_names"):
        del arrays[key]
    trace = Trace.load(write(tmp_path / "t.npz", arrays))
    assert (trace.session(1).name, trace.session(1).source) == ("1", "trace")


def test_selection_keeps_the_given_order_and_moves_the_turns(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "t.npz", good_arrays()))
    swapped = trace.select(np.array([1, 0]))
    assert [session.name for session in swapped.sessions()] == ["second", "first"]
    assert swapped.tokens.tolist() == [*range(12, 20), *range(12)]
    assert swapped.turn_start.tolist() == [0, 3, 6, 8, 13, 15, 18]
    assert swapped.session(1).turns[2].tokens.tolist() == trace.session(0).turns[2].tokens.tolist()


def test_one_source_is_kept_and_an_unknown_one_refused(tmp_path: Path) -> None:
    trace = Trace.load(write(tmp_path / "t.npz", good_arrays()))
    assert trace.of_sources(["chats"]).session(0).name == "second"
    with pytest.raises(ConfigError, match="source tools: not in this trace, which has agents, chats"):
        trace.of_sources(["tools"])


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("an id past the vocabulary", {"vocab_size": np.int64(19)}, "tokens: id 19, vocab_size is 19"),
    ("no vocabulary", {"vocab_size": np.int64(0)}, "vocab_size: expected one positive integer"),
    ("signed tokens", {"tokens": np.arange(20)}, "tokens: shape .* of int64, expected one dimension of uint32"),
    ("no tokens", {"tokens": np.zeros(0, np.uint32)}, "tokens: empty"),
    ("offsets that stop short", {"session_offsets": np.array([0, 12, 19])}, "session_offsets: expected rising"),
    ("an empty session", {"session_offsets": np.array([0, 0, 20])}, "session_offsets: expected rising"),
    ("a role that is none", {"turn_role": np.array([1, 2, 3, 4, 1, 2, 1], np.uint8)}, "turn_role: expected 0 to 3"),
    ("a gap", {"turn_len": np.array([4, 2, 3, 2, 3, 3, 2], np.uint32)}, "turn 1: .* does not tile"),
    ("a turn past the end", {"turn_len": np.array([5, 2, 3, 2, 3, 3, 3], np.uint32)}, "turn 6: .* does not tile"),
    ("a sum that wraps", {"turn_start": np.array([0, 5, 7, 10, 12, 15, 2**62])}, "turn 6: .* does not tile"),
    ("turns out of order", {"turn_session": np.array([1, 0, 0, 0, 1, 1, 1])}, "turn_session: expected rising"),
    ("a turn across sessions", {"turn_session": np.array([0, 0, 0, 0, 0, 1, 1])}, "turn 4: not inside its session 0"),
    ("one role too few", {"turn_role": np.array([1, 2, 3], np.uint8)}, "turns: 7 sessions, 3 roles"),
    ("other roles", {"role_names": np.array(["user", "bot", "tool", "x"])}, "role_names: .*, expected"),
    ("a source past the names", {"session_source": np.array([0, 2])}, "session_source: expected 2 values below 2"),
    ("names that are numbers", {"session_name": np.array([1, 2])}, "session_name: .* expected one dimension of str"),
    ("a name too few", {"session_name": np.array(["x"])}, "session_name: 1 values, expected 2"),
]


@pytest.mark.parametrize(("changed", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_array_is_named_with_what_was_expected(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", good_arrays() | changed)
    with pytest.raises(ConfigError, match=f"t.npz: {message}"):
        Trace.load(path)


def test_missing_file_array_and_archive_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Trace.load(tmp_path / "none.npz")
    arrays = good_arrays()
    del arrays["turn_len"]
    with pytest.raises(ConfigError, match="no array turn_len"):
        Trace.load(write(tmp_path / "short.npz", arrays))
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    with pytest.raises(ConfigError, match=r"not a readable \.npz"):
        Trace.load(text)


def test_pickled_array_is_never_loaded(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", good_arrays() | {"tokens": np.array([{}], dtype=object)})
    with pytest.raises(ConfigError, match="tokens: holds Python objects"):
        Trace.load(path)


def test_header_that_asks_for_more_than_its_bytes_is_refused_before_it_is_allocated(tmp_path: Path) -> None:
    path = write(tmp_path / "t.npz", good_arrays())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    claim = b"(20000000000000,), }"
    members["tokens.npy"] = members["tokens.npy"].replace(b"(20,), }".ljust(len(claim)), claim, 1)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(ConfigError, match=r"tokens: shape \(20000000000000,\) of uint32 does not fit its"):
        Trace.load(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_file_ends_in_a_config_error_or_a_checked_trace(flips: list[tuple[int, int]], tmp_path: Path) -> None:
    content = bytearray(write(tmp_path / "t.npz", good_arrays()).read_bytes())
    for at, value in flips:
        content[at % len(content)] ^= value
    path = tmp_path / "damaged.npz"
    path.write_bytes(bytes(content))
    try:
        trace = Trace.load(path)
    except ConfigError:
        return
    assert sum(len(session.tokens) for session in trace.sessions()) == len(trace.tokens)
