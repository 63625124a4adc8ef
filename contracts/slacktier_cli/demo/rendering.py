# SPDX-License-Identifier: Apache-2.0
"""Messages -> turns of tokens, by a plain form of the DeepSeek V4 chat template.

BOS and the system text; `<User>` and the text for user and tool turns; `<Assistant></think>` before each answer, EOS
after it. The two tokens that open an answer belong to the turn before it, since the server prefills them; EOS belongs
to the answer. Consecutive messages of one role are one turn. Without tool schemas and reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from slacktier_cli.demo.sessions import Session, Turn
from slacktier_cli.traces import Role

BOS: Final = 0
EOS: Final = 1
USER: Final = 128803
ASSISTANT: Final = 128804
THINK_END: Final = 128822

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, as text."""

    role: Role
    content: str


def render(name: str, messages: Iterable[Message], encode: Encode) -> Session:
    """A session of the messages' tokens; `encode` adds no special tokens."""
    joined = [
        Message(role, "\n".join(message.content for message in group))
        for role, group in groupby(messages, key=lambda message: message.role)
    ]
    turns = []
    for index, message in enumerate(joined):
        is_before_answer = index + 1 < len(joined) and joined[index + 1].role is Role.ASSISTANT
        tokens = [*_opening(index, message.role), *encode(message.content), *_ending(message.role, is_before_answer)]
        turns.append(Turn(message.role, np.asarray(tokens, np.uint32)))
    return Session(name, tuple(turns))


def _opening(index: int, role: Role) -> list[int]:
    begin = [BOS] if index == 0 else []
    return [*begin, USER] if role in (Role.USER, Role.TOOL) else begin


def _ending(role: Role, is_before_answer: bool) -> list[int]:
    if role is Role.ASSISTANT:
        return [EOS]
    return [ASSISTANT, THINK_END] if is_before_answer else []
