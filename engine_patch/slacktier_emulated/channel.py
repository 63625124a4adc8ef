# SPDX-License-Identifier: Apache-2.0
"""Frames between the web server's process and the engine's: a length, a kind, and packed arrays or JSON.

Both ends are this build, over one socket pair; nothing here is a public format. All integers are little-endian.

    offset | type | field
    0      | u32  | bytes that follow the kind
    4      | u8   | FrameKind
    5      | ...  | payload
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier_emulated.scheduler import Outputs

Tokens = npt.NDArray[np.uint32]

_HEADER: Final = struct.Struct("<IB")
_SUBMIT: Final = struct.Struct("<QQIBII")  # request id, seed, max tokens, ignore_eos, prompt length, answer length
_CANCEL: Final = struct.Struct("<Q")
_STEP: Final = struct.Struct("<II")  # tokens, prompts begun


class FrameKind(IntEnum):
    """Who sends what: S the server, E the engine."""

    SUBMIT = 1  # S: one request
    CANCEL = 2  # S: a client went away
    CALL = 3  # S: JSON {id, method, params}; answered by REPLY
    STOP = 4  # S: finish and exit
    READY = 10  # E: JSON, the warm-up lookup worked
    STEP = 11  # E: everything that one step yielded
    FAILED = 12  # E: JSON, requests whose step failed
    REPLY = 13  # E: JSON {id, result} or {id, error}
    HEALTH = 14  # E: JSON {ready, error}, when it changes
    FATAL = 15  # E: JSON, the engine could not start


@dataclass(frozen=True, slots=True)
class Submit:
    """A request as the engine gets it; `answer` is empty where the engine makes the answer up."""

    request_id: int
    prompt: Tokens
    answer: Tokens
    max_tokens: int
    ignore_eos: bool
    seed: int


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload), kind) + payload


def json_frame(kind: FrameKind, content: Any) -> bytes:
    return frame(kind, json.dumps(content).encode())


def encode_submit(request: Submit) -> bytes:
    head = _SUBMIT.pack(
        request.request_id,
        request.seed,
        request.max_tokens,
        request.ignore_eos,
        len(request.prompt),
        len(request.answer),
    )
    return frame(FrameKind.SUBMIT, head + request.prompt.tobytes() + request.answer.tobytes())


def decode_submit(payload: bytes) -> Submit:
    request_id, seed, max_tokens, ignore_eos, prompt_length, answer_length = _SUBMIT.unpack_from(payload)
    tokens = np.frombuffer(payload, np.uint32, prompt_length + answer_length, _SUBMIT.size)
    return Submit(request_id, tokens[:prompt_length], tokens[prompt_length:], max_tokens, bool(ignore_eos), seed)


def encode_cancel(request_id: int) -> bytes:
    return frame(FrameKind.CANCEL, _CANCEL.pack(request_id))


def decode_cancel(payload: bytes) -> int:
    return int(_CANCEL.unpack(payload)[0])


def encode_step(outputs: Outputs) -> bytes:
    """One message for all tokens of a step."""
    count, begun = len(outputs.tokens), len(outputs.started_ids)
    payload = struct.pack(
        f"<II{count}Q{count}I{count}B{begun}Q{begun}I",
        count, begun, *outputs.request_ids, *outputs.tokens, *outputs.finishes, *outputs.started_ids,
        *outputs.started_cached,
    )  # fmt: skip
    return frame(FrameKind.STEP, payload)


def decode_step(payload: bytes) -> Outputs:
    count, begun = _STEP.unpack_from(payload)
    flat = struct.unpack_from(f"<{count}Q{count}I{count}B{begun}Q{begun}I", payload, _STEP.size)
    parts = (flat[:count], flat[count : 2 * count], flat[2 * count : 3 * count])
    rest = flat[3 * count :]
    return Outputs(*(list(part) for part in (*parts, rest[:begun], rest[begun:])))


class FrameReader:
    """Cuts a byte stream into frames."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """All frames that are whole with this chunk."""
        self._pending += chunk
        at = 0
        while len(self._pending) - at >= _HEADER.size:
            length, kind = _HEADER.unpack_from(self._pending, at)
            end = at + _HEADER.size + length
            if len(self._pending) < end:
                break
            yield FrameKind(kind), bytes(self._pending[at + _HEADER.size : end])
            at = end
        del self._pending[:at]
