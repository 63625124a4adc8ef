# SPDX-License-Identifier: Apache-2.0
"""What a client measures of one streamed answer, and how many answers become one figure.

TTFT   first token-bearing chunk - request sent
TPOT   (last token-bearing chunk - first) / (completion tokens - 1), per request; tokens as the server's `usage`
       counts them, never as chunks, since a chunk may hold several tokens or none
gaps   time between token-bearing chunks, pooled over requests; a gap is per chunk and goes by its own name

A chunk that only names the role, a usage chunk and `[DONE]` bear no tokens: they move neither end. Answers of one token
or one chunk, or without usage, have no TPOT; they are counted, not averaged in as zero. Which chunk bears tokens, and
that the last of them ends the answer, is vLLM's rule; SGLang ends an answer at the last line of any kind.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from slacktier.errors import ContractError

DONE: Final = b"[DONE]"
_DELTA_TEXT: Final = ("content", "reasoning", "reasoning_content", "tool_calls", "function_call")


class Outcome(StrEnum):
    """How a request ended. Only `completed` ones are measured."""

    COMPLETED = "completed"
    CUT = "cut"  # ended by us, at the end of a block
    FAILED = "failed"


def bears_tokens(choice: dict[str, Any]) -> bool:
    """Whether one choice of a chunk stands for generated tokens.

    A chat delta does with any text, reasoning or call, or with empty content and no role: a token whose text is not
    whole yet, or a special one. A completion does with token ids or with a text, also an empty one.
    """
    if choice.get("token_ids"):
        return True
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return any(delta.get(key) for key in _DELTA_TEXT) or (delta.get("content") == "" and "role" not in delta)
    return isinstance(choice.get("text"), str)


def answer_text(choice: dict[str, Any]) -> str:
    """The text that one choice of a chunk adds to the answer, reasoning included."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    pieces = (delta.get(key) for key in ("reasoning", "reasoning_content", "content"))
    return "".join(piece for piece in pieces if isinstance(piece, str))


@dataclass(slots=True)
class StreamRecord:
    """One request as the client saw it; instants in ns of one monotonic clock.

    chunk_ns    arrival of each token-bearing chunk; completion_tokens is -1 until the server said it
    ended_ns    arrival of the last event of any kind
    answer_crc  CRC-32 of the answer's text: equal answers have equal ones
    status      of the HTTP response, 0 if none came
    """

    sent_ns: int
    chunk_ns: list[int] = field(default_factory=list)
    prompt_tokens: int = -1
    completion_tokens: int = -1
    cached_tokens: int = -1
    finish_reason: str = ""
    is_done: bool = False
    outcome: Outcome = Outcome.CUT
    error: str = ""
    ended_ns: int = 0
    answer_crc: int = 0
    status: int = 0

    def add(self, payload: bytes, now_ns: int) -> None:
        """Take one event's payload, arrived at now_ns; raises ContractError if it is no chunk of a completion."""
        self.ended_ns = now_ns
        if payload == DONE:
            self.is_done = True
            return
        chunk = _parse(payload)
        if chunk.get("error"):
            raise ContractError(f"the server ended the stream: {_error_text(chunk['error'])}")
        is_bearing = False
        for choice in _choices(chunk):
            is_bearing = bears_tokens(choice) or is_bearing
            self.answer_crc = zlib.crc32(answer_text(choice).encode("utf-8", "surrogatepass"), self.answer_crc)
            self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        if is_bearing:
            self.chunk_ns.append(now_ns)
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._take_usage(usage)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage, "prompt_tokens")
        self.completion_tokens = _count(usage, "completion_tokens")
        details = usage.get("prompt_tokens_details")
        self.cached_tokens = _count(details, "cached_tokens") if isinstance(details, dict) else -1

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token, or None if none came."""
        return (self.chunk_ns[0] - self.sent_ns) / 1e6 if self.chunk_ns else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first, or None for an answer of one token or one chunk."""
        if self.completion_tokens <= 1 or len(self.chunk_ns) <= 1:
            return None
        return (self.chunk_ns[-1] - self.chunk_ns[0]) / 1e6 / (self.completion_tokens - 1)

    @property
    def e2e_ms(self) -> float | None:
        """Time from the request to its last token, or None if none came."""
        return (self.chunk_ns[-1] - self.sent_ns) / 1e6 if self.chunk_ns else None

    @property
    def sglang_tpot_ms(self) -> float | None:
        """TPOT as SGLang's client defines it: the answer ends with the last event of any kind."""
        if self.completion_tokens <= 1 or not self.chunk_ns:
            return None
        return (self.ended_ns - self.chunk_ns[0]) / 1e6 / (self.completion_tokens - 1)

    def gaps_ms(self) -> list[float]:
        """Times between token-bearing chunks."""
        return [(b - a) / 1e6 for a, b in zip(self.chunk_ns, self.chunk_ns[1:], strict=False)]


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except ValueError as exc:
        raise ContractError(f"event stream: {payload[:80]!r} is not JSON") from exc
    if not isinstance(chunk, dict):
        raise ContractError(f"event stream: {payload[:80]!r} is not a JSON object")
    return chunk


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    choices = chunk.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise ContractError(f"event stream: choices {str(choices)[:80]}, expected a list of objects")
    return choices


def _count(usage: dict[str, Any], key: str) -> int:
    value = usage.get(key, -1)
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean and percentiles of one figure over requests (linear between ranks), in the figure's own unit."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    minimum: float
    maximum: float

    def as_dict(self) -> dict[str, float | int]:
        return {
            "count": self.count, "mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99,
            "min": self.minimum, "max": self.maximum,
        }  # fmt: skip


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks of an ascending, non-empty sequence; share in [0, 1]."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Summary of the values that are there, or None if there is none."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return None
    return Summary(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        p50=percentile(ordered, 0.50),
        p95=percentile(ordered, 0.95),
        p99=percentile(ordered, 0.99),
        minimum=ordered[0],
        maximum=ordered[-1],
    )
