# SPDX-License-Identifier: Apache-2.0
"""Bodies of /v1/completions and /v1/chat/completions: checked field by field, with OpenAI's error shape in mind.

Fields that this server does not know are accepted and ignored, as OpenAI-compatible servers do; fields that it knows
and cannot honour are refused, since an answer without them would look like one with them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slacktier_emulated.text import Turn

STOPS_MAX: Final = 16
_TOKEN_ID_END: Final = 1 << 32
_COMPLETION_TOKENS_DEFAULT: Final = 16  # OpenAI's default for /v1/completions
_ROLES: Final = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    "function": "tool",
}  # fmt: skip


class RequestError(Exception):
    """A request that is answered with an error: status, and OpenAI's fields."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None,
        kind: str = "invalid_request_error", headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: bool = False


class Options(BaseModel):
    """What both endpoints take. Sampling parameters are checked and have no effect: the engine is emulated."""

    model_config = ConfigDict(strict=True, extra="ignore")
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    stop: str | list[Annotated[str, Field(min_length=1)]] | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that passed all checks which need neither tokenizer nor engine.

    prompt      text or token ids; of a chat, the turns
    answer      token ids to replay; empty: made up
    max_tokens  None: until the answer ends or the context is full
    """

    prompt: str | list[int] | tuple[Turn, ...]
    model: str | None
    answer: list[int]
    max_tokens: int | None
    ignore_eos: bool
    stops: tuple[str, ...]
    seed: int
    stream: bool
    include_usage: bool

    @property
    def is_chat(self) -> bool:
        return isinstance(self.prompt, tuple)


def parse_body(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises RequestError for anything else, garbage bytes included."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the body is not JSON: {exc}") from exc
    if not isinstance(content, dict):
        raise RequestError(f"the body is a JSON {type(content).__name__}, expected an object")
    return content


def parse_completion(content: dict[str, Any]) -> Generation:
    return _generation(content, _prompt(content.get("prompt")))


def parse_chat(content: dict[str, Any]) -> Generation:
    messages = content.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError("messages: expected a list of at least one message", param="messages")
    return _generation(content, tuple(_turn(message, f"messages[{at}]") for at, message in enumerate(messages)))


def _generation(content: dict[str, Any], prompt: str | list[int] | tuple[Turn, ...]) -> Generation:
    options = _options(content)
    stream = bool(options.stream)
    if options.stream_options is not None and not stream:
        raise RequestError("stream_options: only allowed when stream is true", param="stream_options")
    max_tokens = options.max_tokens
    if isinstance(prompt, tuple):
        max_tokens = options.max_completion_tokens or max_tokens
    elif max_tokens is None:
        max_tokens = _COMPLETION_TOKENS_DEFAULT
    stops = (options.stop,) if isinstance(options.stop, str) else tuple(options.stop or ())
    if len(stops) > STOPS_MAX:
        raise RequestError(f"stop: {len(stops)} strings, expected at most {STOPS_MAX}", param="stop")
    return Generation(
        prompt=prompt, model=options.model, answer=_recorded_answer(content), max_tokens=max_tokens,
        ignore_eos=options.ignore_eos, stops=tuple(stop for stop in stops if stop),
        seed=(options.seed or 0) & (1 << 64) - 1, stream=stream,
        include_usage=options.stream_options is not None and options.stream_options.include_usage,
    )  # fmt: skip


def _options(content: dict[str, Any]) -> Options:
    try:
        options = Options.model_validate(content)
    except ValidationError as exc:
        first = exc.errors()[0]
        param = str(first["loc"][0]) if first["loc"] else None
        raise RequestError(f"{param}: {first['msg']}", param=param) from exc
    if options.n not in (None, 1) or options.best_of not in (None, 1):
        raise RequestError("n: one answer per request is what this engine gives", param="n")
    if options.echo:
        raise RequestError("echo: not available on the emulated engine", param="echo")
    if options.logprobs is not None and options.logprobs is not False:
        raise RequestError("logprobs: the emulated engine computes no probabilities", param="logprobs")
    return options


def _prompt(value: Any) -> str | list[int]:
    """A string, a list of token ids, or a list that holds one of either."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return _text(value, "prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        raise RequestError(f"prompt: {len(value)} prompts, expected one per request", param="prompt")
    return _token_ids(value, "prompt")


def _text(value: str, param: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise RequestError(f"{param}: a lone surrogate at character {exc.start} is not text", param=param) from exc
    return value


def _token_ids(value: Any, param: str) -> list[int]:
    if not isinstance(value, list) or not value:
        raise RequestError(f"{param}: expected a string or a non-empty list of token ids", param=param)
    for index, token in enumerate(value):
        if type(token) is not int or not 0 <= token < _TOKEN_ID_END:
            raise RequestError(f"{param}[{index}]: expected a token id, found {_shown(token)}", param=param)
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _recorded_answer(content: dict[str, Any]) -> list[int]:
    """The request extension `"slacktier": {"output_token_ids": [...]}`."""
    extension = content.get("slacktier")
    if extension is None:
        return []
    if not isinstance(extension, dict):
        raise RequestError("slacktier: expected an object", param="slacktier")
    unknown = sorted(set(extension) - {"output_token_ids"})
    if unknown:
        raise RequestError(f"slacktier: {unknown[0]} is not known; expected output_token_ids", param="slacktier")
    if extension.get("output_token_ids") is None:
        return []
    return _token_ids(extension["output_token_ids"], "slacktier.output_token_ids")


def _turn(message: Any, where: str) -> Turn:
    if not isinstance(message, dict):
        raise RequestError(f"{where}: expected an object", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise RequestError(f"{where}.role: expected one of {', '.join(_ROLES)}, found {_shown(role)}", param="messages")
    text = _content(message.get("content"), where)
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        text = "\n".join(part for part in (text, *(_tool_call(call, where) for call in calls)) if part)
    return Turn(_ROLES[role], text)


def _content(content: Any, where: str) -> str:
    """A message's text: a string, text parts, or nothing."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _text(content, f"{where}.content")
    if not isinstance(content, list):
        raise RequestError(f"{where}.content: expected a string or a list of parts", param="messages")
    parts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise RequestError(f"{where}.content: only text parts are served", param="messages")
        parts.append(_text(part["text"], f"{where}.content"))
    return "".join(parts)


def _tool_call(call: Any, where: str) -> str:
    """A past tool call as text, so that its tokens are looked up like all others."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestError(f"{where}.tool_calls: expected objects with a function", param="messages")
    return _text(f"{function.get('name', '')}({function.get('arguments', '')})", f"{where}.tool_calls")
