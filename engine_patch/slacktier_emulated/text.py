# SPDX-License-Identifier: Apache-2.0
"""The tokenizer as the server uses it: prompts to ids, tokens to bytes, and the ids that frame a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from slacktier.errors import ConfigError
from slacktier_rowids.tokenizer import V4Tokenizer, token_bytes

# Ordinary text for answers to prompts that are too short to draw from.
FILLER: Final = (
    "A lookup table can live on any tier whose read time fits the window of the layer that reads it. The rows that a "
    "step needs depend only on its tokens, so every read can start when the step starts, and the layers before the "
    "lookup hide the time that it takes. A layer near the input has a short window and needs a fast tier or a share "
    "of the cache; a layer further up can wait for a disk. Rows that were read a moment ago are often read again, "
    "because people and programs repeat themselves: names, paths, and the phrases of the language they write in."
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a conversation, as it is rendered: role is system, user, tool or assistant."""

    role: str
    text: str


class Codec(Protocol):
    """What the server needs of a tokenizer."""

    bos_id: int

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, turns: Iterable[Turn]) -> list[int]: ...
    def token_bytes(self, token: int) -> bytes: ...


class V4Codec:
    """DeepSeek V4's tokenizer and a plain form of its chat template: no tool schemas, no reasoning blocks."""

    bos_id = V4Tokenizer.bos_id
    eos_id = V4Tokenizer.eos_id

    def __init__(self) -> None:
        self._tokenizer = V4Tokenizer.load()

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def special_first(self) -> int:
        """The lowest control token after the first three; ids from here on never appear in made-up answers."""
        return min(token for token in self._tokenizer.special_ids.values() if token > V4Tokenizer.pad_id)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; control tokens written out in it become control tokens, as in engines."""
        return self._tokenizer.encode(text)

    def token_bytes(self, token: int) -> bytes:
        spelled = self._tokenizer.backend.id_to_token(token)
        if spelled is None:
            raise ConfigError(f"token id {token} is outside the vocabulary 0 to {self.vocab_size - 1}")
        return token_bytes(spelled)

    def encode_chat(self, turns: Iterable[Turn]) -> list[int]:
        """BOS, system text, then <｜User｜> and text for user and tool turns, and <｜Assistant｜></think> and text and
        EOS for each answer; it ends where the next answer begins. Consecutive turns of one role are joined."""
        ids = [V4Tokenizer.bos_id]
        for turn in join_turns(turns):
            text = self.encode(turn.text)
            if turn.role == "assistant":
                ids += [V4Tokenizer.assistant_id, V4Tokenizer.think_end_id, *text, V4Tokenizer.eos_id]
            elif turn.role == "system":
                ids += text
            else:
                ids += [V4Tokenizer.user_id, *text]
        return [*ids, V4Tokenizer.assistant_id, V4Tokenizer.think_end_id]


def join_turns(turns: Iterable[Turn]) -> list[Turn]:
    """Consecutive turns of one role become one, a blank line between them."""
    joined: list[Turn] = []
    for turn in turns:
        if joined and joined[-1].role == turn.role:
            joined[-1] = Turn(turn.role, f"{joined[-1].text}\n\n{turn.text}")
        else:
            joined.append(turn)
    return joined
