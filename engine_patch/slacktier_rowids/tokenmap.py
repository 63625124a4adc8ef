# SPDX-License-Identifier: Apache-2.0
"""Token map: token id -> compressed id, built from a tokenizer and kept in the user's cache.

Tokens whose texts normalize to the same string share a compressed id, numbered in order of first appearance. The
result must equal build_compressed_token_map in sglang 0.5.22: it feeds every row id and every multiplier.
"""

from __future__ import annotations

import logging
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier_rowids.tokenizer import TextTokenizer, tokenizer_sha256, v4_tokenizer_path

TokenMap = npt.NDArray[np.int32]

# Part of the file name: another number here, another map for the same tokenizer.
_RULE_VERSION: Final = 1
_REPLACEMENT: Final = "\ufffd"
# Stands in for a text of one space while both ends are stripped.
_LONE_SPACE: Final = "\ue000"

log = logging.getLogger(__name__)


def cache_directory() -> Path:
    return Path.home() / ".cache" / "slacktier" / "token-maps"


def load_token_map(tokenizer: Path | None = None, *, cache: Path | None = None) -> TokenMap:
    """The token map of a tokenizer, [V] int32, from the cache (about 20 ms) or built and cached (about 1 s).

    tokenizer  a tokenizer.json; None: V4's
    cache      directory of cached maps; None: ~/.cache/slacktier/token-maps
    raises     ConfigError if there is no such tokenizer. A cache that cannot be read or written costs time only.
    """
    path = v4_tokenizer_path() if tokenizer is None else tokenizer
    directory = cache_directory() if cache is None else cache
    cached = directory / f"{tokenizer_sha256(path)}-v{_RULE_VERSION}.npz"
    found = _read(cached)
    if found is None:
        found = build_token_map(TextTokenizer.from_file(path))
        _write(cached, found)
    return found


def build_token_map(tokenizer: TextTokenizer) -> TokenMap:
    """The token map, [vocab_size] int32, worked out from the texts of all tokens."""
    normalizer, backend = _normalizer(), tokenizer.backend
    compressed: dict[str, int] = {}
    codes = np.empty(tokenizer.vocab_size, np.int32)
    for token_id in range(len(codes)):
        text = backend.decode([token_id], skip_special_tokens=False)
        # Part of a character has no text to normalize; the token's own spelling keeps such tokens apart.
        key = backend.id_to_token(token_id) if _REPLACEMENT in text else normalizer.normalize_str(text) or text
        codes[token_id] = compressed.setdefault(key, len(compressed))
    return codes


def _normalizer() -> Any:
    """Unaccented, lower case, white space runs as one space, trimmed unless the text is a single space."""
    from tokenizers import Regex, normalizers

    unaccented = [normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]
    spaces = [normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), _LONE_SPACE)]
    trimmed = [normalizers.Strip(), normalizers.Replace(_LONE_SPACE, " ")]
    return normalizers.Sequence([*unaccented, *spaces, *trimmed])


def _read(cached: Path) -> TokenMap | None:
    """The cached map, or None where there is none that is whole (the zip's CRC says)."""
    try:
        # Opened here: numpy leaves the file open when it is no zip.
        with cached.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            codes = archive["token_map"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        log.warning("token map %s is unreadable and is built anew: %s", cached, exc)
        return None
    return codes if codes.dtype == np.int32 and codes.ndim == 1 else None


def _write(cached: Path, codes: TokenMap) -> None:
    """Into place in one rename, so that a reader sees a whole file or none."""
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
            whole = Path(scratch) / cached.name
            np.savez_compressed(whole, token_map=codes)
            whole.replace(cached)
    except OSError as exc:
        log.warning("token map %s is not cached: %s", cached, exc)
