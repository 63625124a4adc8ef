# SPDX-License-Identifier: Apache-2.0
"""`slacktier status`: what tierd or a cluster's custom resources say, for people; live with --watch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, RenderableType
from rich.live import Live

from slacktier.errors import ConfigError
from slacktier_binding.client import TierdAddress, TierdClient
from slacktier_cli.cluster_objects import ClusterReader
from slacktier_cli.cluster_tables import cluster_tables
from slacktier_cli.status_tables import status_tables

_REFRESH_S: Final = 1.0
_URL: Final = "http://127.0.0.1:8700"


def command(
    url: Annotated[str, typer.Option(help="tierd's head.")] = _URL,
    token_file: Annotated[Path | None, typer.Option(help="A token of role reader or admin.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA file for an https URL.")] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Ask Kubernetes instead of tierd: the resources that the operator keeps.")
    ] = False,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="The cluster to ask; else KUBECONFIG, ~/.kube/config, or the pod's own.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and show every change until Ctrl+C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show tables, replicas, places, bindings and work in progress: tierd's, or a cluster's.

    A layer's line has its window, what the rule predicts for its read time, and what its instance measured; from a
    cluster also why it is where it is.

    Examples:
      slacktier status --token-file reader.token
      slacktier status --token-file reader.token --watch
      slacktier status --url https://tierd:8700 --ca ca.crt --token-file reader.token --json
      slacktier status --cluster
      slacktier status --kubeconfig cluster.conf --json
    """
    if watch and as_json:
        raise ConfigError("--watch and --json do not go together", hint="GET /v1/watch has the changes as JSON")
    everything, tables = _source(url, token_file, ca, cluster or kubeconfig is not None, kubeconfig)
    if as_json:
        print(json.dumps(everything()))
        return
    console = Console(highlight=False)
    if not watch:
        console.print(tables(everything()))
        return
    with Live(tables(everything()), console=console, auto_refresh=False) as live:
        _follow(everything, tables, live)


def _source(
    url: str, token_file: Path | None, ca: Path | None, is_cluster: bool, kubeconfig: Path | None
) -> tuple[Callable[[], Any], Callable[[Any], RenderableType]]:
    """(what to ask, how to show its answer)."""
    if not is_cluster:
        if token_file is None:
            raise ConfigError(
                "--token-file is missing", hint="a file with a token of role reader, see docs/api.md; or --cluster"
            )
        return TierdClient(TierdAddress(url, token_file, "", ca)).everything, status_tables
    if token_file is not None or ca is not None or url != _URL:
        raise ConfigError("--cluster asks Kubernetes, and --url, --token-file and --ca are tierd's: give only one kind")
    return ClusterReader(kubeconfig).everything, cluster_tables


def _follow(everything: Callable[[], Any], tables: Callable[[Any], RenderableType], live: Any) -> None:
    """Until Ctrl+C."""
    try:
        while True:
            time.sleep(_REFRESH_S)
            live.update(tables(everything()), refresh=True)
    except KeyboardInterrupt:
        return
