# SPDX-License-Identifier: Apache-2.0
"""OpenAI-style JSONL -> sessions: one `{"messages": [{"role": ..., "content": ...}, ...]}` per line.

Content is a string, or a list of parts of which the text ones are taken. A message without text (an assistant's bare
tool call) counts with its calls' JSON. Anything else is refused with the file's name and the line's number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier_cli.demo.rendering import Encode, Message, render
from slacktier_cli.demo.sessions import Session
from slacktier_cli.traces import Role

_ROLES: Final = {
    "system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT,
    "tool": Role.TOOL, "function": Role.TOOL,
}  # fmt: skip


def load_conversations(path: Path, encode: Encode) -> list[Session]:
    """Sessions of a JSONL file, one per line that is not empty; raises ConfigError with the line's number."""
    sessions = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    messages = _messages(line, f"{path}: line {number}")
                    sessions.append(render(f"{path.name}:{number}", messages, encode))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from exc
    if not sessions:
        raise ConfigError(f"{path}: it holds no conversation")
    return sessions


def _messages(line: bytes, where: str) -> list[Message]:
    try:
        conversation = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{where}: not JSON: {exc}") from exc
    messages = conversation.get("messages") if isinstance(conversation, dict) else None
    if not isinstance(messages, list) or not messages:
        raise ConfigError(f'{where}: expected an object with a list "messages" that is not empty')
    return [_message(message, f"{where}: message {index}") for index, message in enumerate(messages)]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise ConfigError(f"{where}: {type(message).__name__}, expected an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ConfigError(f"{where}: role {role!r}, expected one of {', '.join(_ROLES)}")
    text = _text(message.get("content"), where)
    calls = message.get("tool_calls")
    if calls:
        text = "\n".join(part for part in (text, json.dumps(calls, ensure_ascii=False)) if part)
    if not text:
        raise ConfigError(f"{where}: no text and no tool call")
    return Message(_ROLES[role], text)


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise ConfigError(f"{where}: content {type(content).__name__}, expected a string or a list of parts")
    texts = [part.get("text") for part in content if part.get("type", "text") in ("text", "input_text", "output_text")]
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}: a text part without a string")
    return "\n".join(text for text in texts if isinstance(text, str))
