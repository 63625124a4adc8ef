# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve --tierd`: the options that make the server an instance of tierd, and the wait until it is bound."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from slacktier.api import InstanceSpec
from slacktier.errors import ConfigError
from slacktier.input_errors import config_error
from slacktier_binding.client import TierdAddress
from slacktier_emulated.binding import BindingSettings, Bound, Load, instance_spec
from slacktier_emulated.profile import Profile
from slacktier_rowids.engram import EngramLayout

_TTL_S: Final = 60.0  # an instance that was killed gives its place up after this


@dataclass(frozen=True, slots=True)
class InstanceOptions:
    """As given on the command line."""

    url: str
    name: str
    token_file: Path | None
    ca_file: Path | None
    tables: tuple[str, ...]
    sessions: int
    misses: tuple[str, ...]
    cache_rows: int
    slo_pct: float
    node: str
    wait_s: float
    ranks: int


def parse_tables(texts: tuple[str, ...], known: tuple[int, ...]) -> dict[int, str]:
    """`LAYER=NAME` by layer, in order of use; raises ConfigError."""
    tables: dict[int, str] = {}
    for text in texts:
        layer, equals, name = text.partition("=")
        if not equals or not layer.isascii() or not layer.isdigit() or not name or int(layer) in tables:
            raise ConfigError(f"--table {text!r}: expected LAYER=NAME, each layer once")
        if int(layer) not in known:
            raise ConfigError(f"--table {text}: the profile knows layers {', '.join(map(str, known))}")
        tables[int(layer)] = name
    if not tables:
        raise ConfigError("--tierd without --table: which tables?", hint="--table 1=NAME --table 14=NAME")
    return dict(sorted(tables.items()))


def parse_misses(texts: tuple[str, ...]) -> dict[int, tuple[tuple[int, float], ...]]:
    """`LAYER=ROWS:PAGES,...` by layer; raises ConfigError."""
    found: dict[int, tuple[tuple[int, float], ...]] = {}
    for text in texts:
        layer, _, rest = text.partition("=")
        try:
            points = [point.split(":") for point in rest.split(",")]
            found[int(layer)] = tuple((int(rows), float(pages)) for rows, pages in points)
        except ValueError as exc:
            raise ConfigError(f"--misses {text!r}: expected LAYER=ROWS:PAGES,... as in 14=0:600,250000:114") from exc
    return found


def bind(options: InstanceOptions, profile: Profile, layout: object, *, is_free: bool) -> Bound:
    """Make the instance known and wait until it is bound; says on stderr what it waits for."""
    if not is_free:
        raise ConfigError("--tierd says where rows are; --layer and --cache-rows do not go with it")
    if not options.name or options.token_file is None:
        raise ConfigError("--tierd needs --instance and --tierd-token-file")
    if not isinstance(layout, EngramLayout):
        raise ConfigError("--config: the emulated engine serves V4.1 Engram tables; this model has Qwen PLE tables")
    tables = parse_tables(options.tables, profile.layer_ids)
    load = Load(options.sessions, layout.constants.columns, parse_misses(options.misses))
    try:
        spec = instance_spec(
            profile, tables, load, ranks=options.ranks, slo_pct=options.slo_pct, cache_rows=options.cache_rows,
            node=options.node, ttl_s=_TTL_S,
        )  # fmt: skip
    except ValidationError as exc:
        raise config_error(exc, InstanceSpec) from exc
    directory = Path(tempfile.gettempdir()) / f"slacktier-keys-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise ConfigError(f"{directory}: belongs to another user")
    address = TierdAddress(options.url, options.token_file, options.name, options.ca_file)
    settings = BindingSettings(address, spec, directory, options.wait_s)
    return Bound(settings, lambda why: print(f"waiting to be bound: {why}", file=sys.stderr, flush=True))
