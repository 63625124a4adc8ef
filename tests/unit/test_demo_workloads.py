# SPDX-License-Identifier: Apache-2.0
"""Text becomes sessions the same way each time; conversations that make no sense are refused by line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktier.errors import ConfigError
from slacktier_cli.demo.conversations import load_conversations
from slacktier_cli.demo.rendering import ASSISTANT, BOS, EOS, THINK_END, USER, Message, render
from slacktier_cli.demo.sessions import Session
from slacktier_cli.demo.stdlib_text import stdlib_sessions
from slacktier_cli.traces import Role


def encode(text: str) -> list[int]:
    """One id per character, away from the template's ids."""
    return [1000 + ord(character) for character in text]


def text_of(session: Session) -> str:
    return "".join(chr(t - 1000) for turn in session.turns for t in turn.tokens.tolist() if 1000 <= t < 120_000)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A library of five modules, one of which does not parse, and a directory of tests."""
    body = "def first(x):\n    '''Adds {n}.'''\n    y = len(x)\n    return max(x, y, {n})\n\n\n" + (
        "class Box:\n    def put(self, item):\n        self.item = item\n        check(item)\n        return self\n\n\n"
    )
    for index in range(4):
        (tmp_path / f"mod{index}.py").write_text(body.format(n=index) + "# filler line\n" * 400)
    (tmp_path / "broken.py").write_text("def (:\n" + "# filler line\n" * 400)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_mod.py").write_text(body + "# filler line\n" * 400)
    return tmp_path


def test_standard_library_sessions_repeat_with_the_seed(library: Path) -> None:
    def tokens(seed: int) -> list[list[int]]:
        sessions = stdlib_sessions(4, seed=seed, encode=encode, root=library)
        return [turn.tokens.tolist() for session in sessions for turn in session.turns]

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)


def test_standard_library_sessions_quote_the_modules(library: Path) -> None:
    sessions = stdlib_sessions(6, seed=1, encode=encode, root=library)
    assert len({session.name for session in sessions}) == 6
    for session in sessions:
        text = text_of(session)
        assert "Lib/mod" in text
        assert "self.item = item" in text or "return max(x, y" in text
        assert len(session.answers) >= 3
        assert session.turns[0].role is Role.SYSTEM


def test_library_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no Python sources"):
        stdlib_sessions(1, seed=0, encode=encode, root=tmp_path)


def test_library_that_defines_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("# filler line\n" * 400)
    with pytest.raises(ConfigError, match="no module there defines anything"):
        stdlib_sessions(1, seed=0, encode=encode, root=tmp_path)


def test_template_gives_the_opening_to_the_turn_before_and_eos_to_the_answer() -> None:
    messages = [
        Message(Role.SYSTEM, "s"),
        Message(Role.USER, "a"),
        Message(Role.USER, "b"),
        Message(Role.ASSISTANT, "c"),
        Message(Role.TOOL, "d"),
    ]
    session = render("x", messages, encode)
    s, a, b, c, d = (1000 + ord(letter) for letter in "sabcd")
    assert [(turn.role, turn.tokens.tolist()) for turn in session.turns] == [
        (Role.SYSTEM, [BOS, s]),
        (Role.USER, [USER, a, 1000 + ord("\n"), b, ASSISTANT, THINK_END]),
        (Role.ASSISTANT, [c, EOS]),
        (Role.TOOL, [USER, d]),
    ]
    assert session.turns[0].tokens.dtype == np.uint32


def write_lines(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_conversations_are_read_one_per_line(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "x"}}]
    path = write_lines(
        tmp_path / "talk.jsonl",
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        "",
        {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [1]}]},
    )
    sessions = load_conversations(path, encode)
    assert [session.name for session in sessions] == ["talk.jsonl:1", "talk.jsonl:3"]
    assert [text_of(session) for session in sessions] == ["hihello", "one[1]"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[]", 'line 2: expected an object with a list "messages"'),
        ({"messages": []}, 'line 2: expected an object with a list "messages"'),
        ({"messages": ["hi"]}, "line 2: message 0: str, expected an object"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "line 2: message 0: role 'robot', expected one of"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "line 2: message 0: role"),
        ({"messages": [{"role": "user", "content": 3}]}, "line 2: message 0: content int"),
        ({"messages": [{"role": "user", "content": [{"text": 3}]}]}, "line 2: message 0: a text part without"),
        ({"messages": [{"role": "user", "content": ""}]}, "line 2: message 0: no text and no tool call"),
    ],
)
def test_conversation_that_makes_no_sense_is_refused_by_line(tmp_path: Path, line: Any, error: str) -> None:
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    path = write_lines(tmp_path / "talk.jsonl", good, line)
    with pytest.raises(ConfigError, match=r"talk\.jsonl: ") as caught:
        load_conversations(path, encode)
    assert error in str(caught.value)
    assert "\n" not in str(caught.value)


def test_conversation_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_conversations(tmp_path / "none.jsonl", encode)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="no conversation"):
        load_conversations(tmp_path / "empty.jsonl", encode)
