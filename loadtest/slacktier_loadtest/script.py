# SPDX-License-Identifier: Apache-2.0
"""What a generator sends: sessions of requests, fixed before anything runs, so that every arm gets the same.

A request's prompt is everything of its session so far plus what is new, and always holds the recorded answers, not
those that the server gave: the sequence must not depend on the server. Pieces are ready-made JSON, so that a request
costs the generator a join and no encoding while it measures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from slacktier_cli.replay.reply import streaming_body

_MARKER_FIRST: Final = 100


@dataclass(frozen=True, slots=True)
class TurnScript:
    """One request.

    new         what it adds to the prompt: JSON elements, comma-separated: token ids, or chat messages
    answer      what the next request's prompt holds for its answer, in the same form
    max_tokens  length of the answer
    pause_s     time between the previous answer's end and this request
    """

    new: str
    answer: str
    max_tokens: int
    pause_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SessionScript:
    """One session; start_s is when it begins in an open loop, from the start of the block (0 in a closed one)."""

    name: str
    turns: tuple[TurnScript, ...]
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestShape:
    """How a request's JSON is made around its prompt.

    field        "prompt" (token ids) or "messages"
    first        the prompt's first elements, other in each block where no prefix cache may know the prompt; or ""
    body         everything else: model, ignore_eos, temperature
    replays      ask the emulated engine for the recorded answer
    """

    field: str
    first: str
    body: Mapping[str, Any]
    replays: bool = False

    @property
    def path(self) -> str:
        return "/v1/completions" if self.field == "prompt" else "/v1/chat/completions"

    def payload(self, turn: TurnScript, pieces: Sequence[str]) -> bytes:
        """The request's JSON; pieces are the session's so far, this turn's included."""
        rest = streaming_body({**self.body, "max_tokens": turn.max_tokens}).decode()
        answer = f'"slacktier":{{"output_token_ids":[{turn.answer}]}},' if self.replays else ""
        prompt = ",".join([self.first, *pieces] if self.first else pieces)
        return f'{{"{self.field}":[{prompt}],{answer}{rest[1:]}'.encode()


@dataclass(frozen=True, slots=True)
class BlockScript:
    """All that a generator needs for one block.

    users      each user's sessions, one after the other; a user waits for each answer
    urls       user u sends to urls[u % len(urls)]
    headers    further request headers, such as an API key
    timeout_s  a server that sends nothing for so long has failed the request
    """

    users: tuple[tuple[SessionScript, ...], ...]
    urls: tuple[str, ...]
    shape: RequestShape
    headers: Mapping[str, str]
    timeout_s: float

    @property
    def request_count(self) -> int:
        return sum(len(session.turns) for user in self.users for session in user)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        return cls(
            users=tuple(sessions_from_json(user) for user in content["users"]),
            urls=tuple(content["urls"]),
            shape=RequestShape(**content["shape"]),
            headers=dict(content["headers"]),
            timeout_s=content["timeout_s"],
        )


def sessions_from_json(content: Sequence[Mapping[str, Any]]) -> tuple[SessionScript, ...]:
    """A user's sessions as asdict() gave them."""
    return tuple(
        SessionScript(session["name"], tuple(TurnScript(**turn) for turn in session["turns"]), session["start_s"])
        for session in content
    )


def payloads(session: SessionScript, shape: RequestShape) -> Iterator[tuple[TurnScript, bytes]]:
    """Each request of a session with its JSON, in order."""
    pieces: list[str] = []
    for turn in session.turns:
        pieces.append(turn.new)
        yield turn, shape.payload(turn, pieces)
        if turn.answer:
            pieces.append(turn.answer)


def marker_ids(number: int) -> str:
    """Two token ids to stand before a block's prompts: other ones for each of 10,000 numbers, ordinary in any model."""
    return f"{_MARKER_FIRST + number // 100 % 100},{_MARKER_FIRST + number % 100}"


def message_json(role: str, text: str) -> str:
    """One chat message as a piece."""
    return json.dumps({"role": role, "content": text}, ensure_ascii=False)
