# SPDX-License-Identifier: Apache-2.0
"""`slacktier status`: what tierd holds, for people; live with --watch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from slacktier.errors import ConfigError
from slacktier_binding.client import TierdAddress, TierdClient
from slacktier_cli.status_tables import status_tables

_REFRESH_S = 1.0


def command(
    url: Annotated[str, typer.Option(help="tierd's head.")] = "http://127.0.0.1:8700",
    token_file: Annotated[Path | None, typer.Option(help="A token of role reader or admin.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA file for an https URL.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show every change until Ctrl+C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show tierd's tables, replicas, places, bindings and work in progress.

    A layer's line has its window, what the rule predicts for its read time, and what its instance measured.

    Examples:
      slacktier status --token-file reader.token
      slacktier status --token-file reader.token --watch
      slacktier status --url https://tierd:8700 --ca ca.crt --token-file reader.token --json
    """
    if token_file is None:
        raise ConfigError("--token-file is missing", hint="a file with a token of role reader; see docs/api.md")
    if watch and as_json:
        raise ConfigError("--watch and --json do not go together", hint="GET /v1/watch has the changes as JSON")
    client = TierdClient(TierdAddress(url, token_file, "", ca))
    if as_json:
        print(json.dumps(client.everything()))
        return
    console = Console(highlight=False)
    if not watch:
        console.print(status_tables(client.everything()))
        return
    with Live(status_tables(client.everything()), console=console, auto_refresh=False) as live:
        _follow(client, live)


def _follow(client: TierdClient, live: Any) -> None:
    """Until Ctrl+C."""
    try:
        while True:
            time.sleep(_REFRESH_S)
            live.update(status_tables(client.everything()), refresh=True)
    except KeyboardInterrupt:
        return
