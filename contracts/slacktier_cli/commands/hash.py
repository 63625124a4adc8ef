# SPDX-License-Identifier: Apache-2.0
"""`slacktier hash`: which table rows a text or a list of token ids reads."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from slacktier.errors import ConfigError
from slacktier_rowids.models import Hasher, load_config, load_hasher
from slacktier_rowids.ngram import as_tokens
from slacktier_rowids.ple import PleLayout
from slacktier_rowids.tokenizer import TextTokenizer, V4Tokenizer

_TOKEN_ID = re.compile(r"-?[0-9]{1,18}")
_INPUT_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Selection:
    """What is printed: row ids [T, L, C] of the tokens at `positions`, for the chosen layers."""

    model: str
    layer_ids: list[int]
    row_counts: list[int]
    tokens: list[int]
    positions: list[int]
    row_ids: npt.NDArray[np.int64]


def command(
    source: Annotated[str, typer.Argument(metavar="[-]", help="- reads standard input.", show_default=False)] = "",
    model: Annotated[str, typer.Option(help="v41, qwen3.8, or the model's config.json.")] = "v41",
    text: Annotated[str | None, typer.Option(help="Hash the tokens of this text.")] = None,
    tokens: Annotated[str | None, typer.Option(help="Hash these token ids, separated by commas or spaces.")] = None,
    file: Annotated[Path | None, typer.Option(help="Hash this file: UTF-8 text, or ids with --as-tokens.")] = None,
    ids_in_file: Annotated[
        bool, typer.Option("--as-tokens", help="What is read with --file or - are token ids.")
    ] = False,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The model's tokenizer.json. Default: V4's, for V4.1 and its kin.")
    ] = None,
    layer: Annotated[list[int] | None, typer.Option(help="Only this model layer; may be given more than once.")] = None,
    step: Annotated[bool, typer.Option("--step", help="One decode step: the last token, the rest is history.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Tokens to show; --json always prints all.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the row ids that tokens read from a model's n-gram tables.

    \b
    Column order is n-gram order first, then head. A text is tokenized as it stands, without a chat template.
    Qwen3.8 needs --tokenizer for text; its token ids need none.

    \b
    Examples:
      slacktier hash --text 'def main():'
      slacktier hash --tokens 19923,14,2058,3 --layer 14
      slacktier hash --tokens '19923 14 2058' --step --json
      slacktier hash --model qwen3.8 --tokens 10,20,30
      slacktier hash --model qwen3.8 --tokenizer tokenizer.json --file notes.txt
      git diff | slacktier hash -
    """
    config = load_config(model)
    content, is_text = _read_input(source, text, tokens, file, ids_in_file)
    hasher = load_hasher(config, tokenizer=tokenizer, name=model)
    reader = _text_tokenizer(hasher, tokenizer) if is_text else None
    ids = reader.encode(content) if reader else parse_token_ids(content)
    chosen = select(hasher, model, ids, layer or [], step)
    if as_json:
        print(json.dumps(_as_object(chosen)))
    else:
        print("\n".join(_lines(chosen, hasher.constants.primes.shape[1], limit, reader)))


def _read_input(
    source: str, text: str | None, tokens: str | None, file: Path | None, ids_in_file: bool
) -> tuple[str, bool]:
    """What to hash, and whether it is text; exactly one source must be given."""
    if source not in ("", "-"):
        raise ConfigError(f"argument {source!r}: only - is known", hint=f"for a text, use --text {source!r}")
    given = [text is not None, tokens is not None, file is not None, source == "-"]
    if sum(given) != 1:
        raise ConfigError(f"{sum(given)} inputs, expected one of --text, --tokens, --file and -")
    if tokens is not None:
        return tokens, False
    if text is not None:
        if ids_in_file:
            raise ConfigError("--as-tokens goes with --file and -", hint="for token ids, use --tokens")
        try:
            text.encode()
        except UnicodeEncodeError as exc:  # bytes that are no UTF-8 come from the shell as lone surrogates
            raise ConfigError(f"--text: not UTF-8 text at character {exc.start}") from exc
        return text, True
    return _read_bounded(file), not ids_in_file


def _read_bounded(file: Path | None) -> str:
    """A file's or standard input's text; neither need ever end."""
    name = file or "standard input"
    try:
        if file is None:
            raw = sys.stdin.buffer.read(_INPUT_BYTES_MAX + 1)
        else:
            with file.open("rb") as opened:
                raw = opened.read(_INPUT_BYTES_MAX + 1)
    except OSError as exc:
        raise ConfigError(f"{name}: {exc.strerror}") from exc
    if len(raw) > _INPUT_BYTES_MAX:
        raise ConfigError(f"{name}: more than {_INPUT_BYTES_MAX >> 20} MiB", hint="hash it in parts")
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{name}: not UTF-8 text: {exc.reason} at byte {exc.start}") from exc


def _text_tokenizer(hasher: Hasher, tokenizer: Path | None) -> TextTokenizer:
    if tokenizer is not None:
        return TextTokenizer.from_file(tokenizer)
    if isinstance(hasher.layout, PleLayout):
        raise ConfigError(
            "text for a Qwen4Exp model needs its tokenizer", hint="add --tokenizer FILE (the model's tokenizer.json)"
        )
    return V4Tokenizer.load()


def parse_token_ids(content: str) -> list[int]:
    """Token ids separated by commas or white space; raises ConfigError for anything else."""
    items = re.split(r"\s*,\s*|\s+", content.strip())
    for index, item in enumerate(items):
        if not _TOKEN_ID.fullmatch(item):
            shown = item if len(item) <= 40 else f"{item[:40]}..."
            raise ConfigError(f"token {index}: {shown!r} is not a token id", hint="for example: 19923,14,2058,3")
    return [int(item) for item in items]


def select(hasher: Hasher, model: str, ids: list[int], layers: list[int], step: bool) -> Selection:
    """Row ids of all tokens, or of the last one as a decode step computes them, for `layers` (none given: all)."""
    layout = hasher.layout
    if unknown := sorted(set(layers) - set(layout.layer_ids)):
        known = ", ".join(map(str, layout.layer_ids))
        raise ConfigError(f"--layer {unknown[0]}: this layer has no table", hint=f"layers with a table: {known}")
    if not ids:
        raise ConfigError("no tokens to hash: the input is empty")
    tokens = as_tokens(ids, "tokens")
    hasher.vocabulary.check(tokens, "token")
    rows = hasher.step(hasher.window(tokens)[None]) if step else hasher.sequence(tokens)
    indexes = [index for index, layer in enumerate(layout.layer_ids) if not layers or layer in layers]
    return Selection(
        model=model,
        layer_ids=[layout.layer_ids[index] for index in indexes],
        row_counts=[layout.row_counts[index] for index in indexes],
        tokens=ids,
        positions=[len(ids) - 1] if step else list(range(len(ids))),
        row_ids=rows[:, indexes],
    )


def _as_object(chosen: Selection) -> dict[str, Any]:
    layers = [
        {"layer_id": layer, "row_count": row_count, "row_ids": chosen.row_ids[:, index].tolist()}
        for index, (layer, row_count) in enumerate(zip(chosen.layer_ids, chosen.row_counts, strict=True))
    ]
    return {"model": chosen.model, "tokens": chosen.tokens, "positions": chosen.positions, "layers": layers}


def _lines(chosen: Selection, orders: int, limit: int, reader: TextTokenizer | None) -> Iterator[str]:
    """The table: per token a line for each layer and n-gram order; a last line says what is left out."""
    tables = ", ".join(
        f"layer {layer}: {rows:,} rows" for layer, rows in zip(chosen.layer_ids, chosen.row_counts, strict=True)
    )
    yield f"{chosen.model}: {len(chosen.tokens):,} tokens; {tables}; row ids by head"
    by_order = chosen.row_ids.reshape(len(chosen.positions), len(chosen.layer_ids), orders, -1)
    width = len(str(max(chosen.row_counts)))
    for position, per_layer in list(zip(chosen.positions, by_order, strict=True))[:limit]:
        token = chosen.tokens[position]
        text = "" if reader is None else f" {reader.decode([token])!r}"
        yield f"position {position}: token {token}{text}"
        for layer, per_order in zip(chosen.layer_ids, per_layer, strict=True):
            for order, heads in enumerate(per_order.tolist(), start=2):
                yield f"  layer {layer:>2} {order}-gram " + " ".join(f"{row:>{width}}" for row in heads)
    if (hidden := len(chosen.positions) - limit) > 0:
        yield f"{hidden:,} tokens ({chosen.row_ids[limit:].size:,} row ids) not shown: --limit N, or --json for all"
