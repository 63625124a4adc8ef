# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve-rows`: regions in this node's memory, served to other nodes row by row."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, Superblock
from slacktier.region import open_region
from slacktier.tiers import Tier
from slacktier_cli.progress import Bars
from slacktier_cli.sizes import size_text


def command(
    regions: Annotated[
        list[str], typer.Argument(help="Complete regions; a striped one is its paths with commas between them.")
    ],
    token_file: Annotated[Path, typer.Option(help="What clients prove to know, 16 bytes or more.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT or [IPV6]:PORT; port 0 takes a free one.")] = "127.0.0.1:7400",
    connections: Annotated[int, typer.Option(min=1, max=4096, help="Clients at once; further ones are refused.")] = 64,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=60, help="A peer silent for longer is cut off.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready.")] = False,
) -> None:
    """Load regions into memory and serve their rows over TCP, each to every client that knows the token.

    One connection reads one layer; a client is a layer's source `tcp@TOKEN_FILE:HOST:PORT`. Ends on SIGTERM or SIGINT.

    Examples:
      openssl rand -hex 32 > rows.token
      slacktier serve-rows /data/l1.region /data/l14.region --token-file rows.token --listen 0.0.0.0:7400
      slacktier serve --layer 1=tcp@rows.token:node2:7400 --layer 14=nvme:/data/l14 --layer 14=tcp@rows.token:node2:7400
      slacktier serve-rows /data/l1.region --token-file rows.token --listen 127.0.0.1:0 --json | jq -r .address
    """
    from slacktier_native.row_link import parse_address, read_token
    from slacktier_native.rows import RowServer
    from slacktier_native.sources import SourceSpec

    host, port = parse_address(listen)
    token = read_token(token_file)
    specs = [SourceSpec(Tier.DRAM, tuple(Path(part) for part in text.split(",") if part)) for text in regions]
    found = _check(specs)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    total = sum(sb.page_count for sb in found) * PAGE_BYTES
    with ExitStack() as stack:
        with Bars().work(f"loading {size_text(total)}", len(specs)) as advance:
            server = stack.enter_context(
                RowServer(
                    specs, token, host=host, port=port, timeout_s=timeout_s, connections_max=connections,
                    loaded=lambda _: advance(1),
                )
            )  # fmt: skip
        _tell_ready(server.address, found, as_json=as_json)
        ended.wait()
    counts = server.stats()
    print(
        f"served {counts['rows']} rows in {counts['requests']} requests, {size_text(counts['bytes'])}; "
        f"{counts['refused']} refused",
        file=sys.stderr,
    )


def _check(specs: list[Any]) -> list[Superblock]:
    """Superblocks of the regions, all before any is loaded; raises ConfigError for what cannot be served."""
    from slacktier_emulated.cache_size import available_memory_bytes

    found: dict[tuple[object, int], str] = {}
    superblocks = []
    for spec in specs:
        if not spec.paths:
            raise ConfigError("a region without a path")
        with open_region(spec.paths) as region:
            sb = region.superblock
        table = (sb.table_uuid, sb.layer_id)
        if table in found:
            raise ConfigError(f"{spec.label}: holds layer {sb.layer_id} of the same table as {found[table]}")
        found[table] = spec.label
        superblocks.append(sb)
    needed, available = sum(sb.page_count for sb in superblocks) * PAGE_BYTES, available_memory_bytes()
    if needed > available:
        raise ConfigError(f"regions of {size_text(needed)}: memory has {size_text(available)} available")
    return superblocks


def _tell_ready(address: tuple[str, int], found: list[Superblock], *, as_json: bool) -> None:
    host, port = address
    layers = [{"layer_id": sb.layer_id, "table": str(sb.table_uuid), "rows": sb.row_count} for sb in found]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if as_json:
        ready = {"address": where, "host": host, "port": port, "pid": os.getpid(), "layers": layers}
        print(json.dumps(ready), flush=True)
        return
    for layer in layers:
        print(f"layer {layer['layer_id']}: {layer['rows']} rows of table {layer['table']}", file=sys.stderr)
    print(f"serving rows at {where}", file=sys.stderr, flush=True)
