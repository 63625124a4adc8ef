# SPDX-License-Identifier: Apache-2.0
"""Bodies of answers: server-sent events put together from bytes, and whole JSON answers.

One event per token and stream is what a step costs the server, so everything but the text is prepared once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from slacktier_emulated.detokenize import Piece

DONE: Final = b"data: [DONE]\n\n"
FINGERPRINT: Final = "slacktier-emulated"
_MARK: Final = "\u0001"


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class EventWriter:
    """Events of one answer.

    include_usage  every event carries `usage`, null except in the last, as OpenAI's servers do when asked for usage
    """

    def __init__(self, answer_id: str, model: str, created: int, *, is_chat: bool, include_usage: bool) -> None:
        self._head = _head(answer_id, model, created, "chat.completion.chunk" if is_chat else "text_completion")
        self._is_chat = is_chat
        self._include_usage = include_usage
        delta = {"delta": {"content": _MARK}} if is_chat else {"text": _MARK}
        self._plain = self._template(delta, None)
        self._finished = {reason: self._template(delta, reason) for reason in ("stop", "length")}

    def _template(self, delta: dict[str, Any], finish_reason: str | None) -> tuple[bytes, bytes]:
        """What stands before and after the text of an event."""
        before, _, after = self._event(delta, finish_reason).partition(json.dumps(_MARK)[1:-1].encode())
        return before, after

    def _event(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, **delta, "logprobs": None, "finish_reason": finish_reason}
        usage: dict[str, Any] = {"usage": None} if self._include_usage else {}
        return _data({**self._head, "choices": [choice], **usage})

    def opening(self) -> bytes:
        """The role-only event that begins a chat answer; nothing for a completion."""
        return self._event({"delta": {"role": "assistant", "content": ""}}, None) if self._is_chat else b""

    def token(self, piece: Piece) -> bytes:
        before, after = self._plain
        return before + piece.escaped + after

    def last(self, piece: Piece, finish_reason: str) -> bytes:
        before, after = self._finished[finish_reason]
        return before + piece.escaped + after

    def usage(self, usage: Usage) -> bytes:
        return _data({**self._head, "choices": [], "usage": usage.as_json()}) if self._include_usage else b""


def error_event(content: dict[str, Any]) -> bytes:
    """An error in the middle of a stream; the stream ends after it, without [DONE]."""
    return _data(content)


def whole_answer(
    answer_id: str, model: str, created: int, *, is_chat: bool, text: str, finish_reason: str, usage: Usage
) -> dict[str, Any]:
    """The answer of a request that did not stream."""
    content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    return {
        **_head(answer_id, model, created, "chat.completion" if is_chat else "text_completion"),
        "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}],
        "usage": usage.as_json(),
    }


def _head(answer_id: str, model: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": answer_id, "object": kind, "created": created, "model": model, "system_fingerprint": FINGERPRINT}


def _data(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
