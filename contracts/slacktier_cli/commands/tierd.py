# SPDX-License-Identifier: Apache-2.0
"""`slacktier tierd`: the tier service's head."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slacktier.errors import ConfigError
from slacktier_tierd.deployment.ray_deployment import RayDeployment, RaySettings
from slacktier_tierd.head.server import run
from slacktier_tierd.head.settings import Decider, HeadSettings
from slacktier_tierd.head.tokens import FileTokens, ReviewedTokens, Tokens, api_server_post


def command(
    state: Annotated[Path, typer.Option(help="SQLite file for what is wanted.")] = Path("tierd.sqlite"),
    token_file: Annotated[Path | None, typer.Option(help="Lines of ROLE NAME TOKEN; see docs/api.md.")] = None,
    token_review: Annotated[
        bool, typer.Option("--token-review", help="Check tokens by Kubernetes' TokenReview.")
    ] = False,
    admin_account: Annotated[
        list[str] | None, typer.Option(help="NAMESPACE:NAME of a service account with role admin; with --token-review.")
    ] = None,
    reader_account: Annotated[list[str] | None, typer.Option(help="The same for role reader.")] = None,
    api_server: Annotated[str, typer.Option(help="URL for --token-review; default: the pod's own cluster.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8700,
    decide: Annotated[Decider, typer.Option(help="Who binds instances.")] = Decider.TIERD,
    ray_address: Annotated[str, typer.Option(help="A Ray cluster to join; default: a small Ray of our own.")] = "",
    run_dir: Annotated[
        Path | None, typer.Option(help="Memory nodes' sockets and logs, on every node; at most 60 characters.")
    ] = None,
    advertise: Annotated[str, typer.Option(help="Address that peers reach this node's memory nodes at.")] = "127.0.0.1",
    lease_s: Annotated[float, typer.Option(min=0, help="Memory nodes without a head end after this; 0: never.")] = 3600,
    look_s: Annotated[float, typer.Option(min=0.1, help="How often devices are looked at.")] = 3.0,
    requests_per_s: Annotated[float, typer.Option(min=1, help="Of one caller.")] = 500.0,
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate chain; with --tls-key.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM private key.")] = None,
    stop_memory_nodes: Annotated[
        bool, typer.Option("--stop-memory-nodes", help="End them with the head instead of leaving them to the next.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when the API answers.")] = False,
) -> None:
    """Run tierd's head: it stages tables, keeps memory nodes, and tells instances where their rows are.

    Without --ray-address it starts a small Ray of its own, which ends with it. What is wanted is in --state and
    survives a restart; what is so is read from the regions' superblocks. Audit lines and warnings go to stderr.

    Examples:
      slacktier tierd --token-file tokens --state /var/lib/slacktier/tierd.sqlite
      slacktier tierd --token-file tokens --host 0.0.0.0 --advertise 10.0.0.2 --tls-cert tls.crt --tls-key tls.key
      slacktier tierd --token-review --admin-account slacktier:operator --decide operator --ray-address auto
      curl -H "Authorization: Bearer $TOKEN" localhost:8700/v1/replicas
    """
    tokens = _tokens(token_file, token_review, admin_account or [], reader_account or [], api_server)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    for path in (tls_cert, tls_key):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"{path}: cannot be read")
    if tls_cert is not None and tls_key is not None:
        _check_certificate(tls_cert, tls_key)
    if not state.absolute().parent.is_dir():
        raise ConfigError(f"--state {state}: no such directory: {state.absolute().parent}")
    where = run_dir or Path(tempfile.gettempdir()) / f"slacktier-{os.getuid()}"
    if len(str(where.absolute())) > 60:
        raise ConfigError(f"--run-dir {where}: more than 60 characters, and a socket's path ends at 107")
    settings = HeadSettings(
        state_path=state, host=host, port=port, decider=decide, advertise=advertise, lease_s=lease_s, look_s=look_s,
        requests_per_s=requests_per_s, tls_cert=tls_cert, tls_key=tls_key,
    )  # fmt: skip
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    deployment = RayDeployment(RaySettings(where.absolute(), ray_address))
    code = run(settings, tokens, deployment, as_json=as_json, stop_nodes=stop_memory_nodes)
    if code:
        raise typer.Exit(code)


def _tokens(file: Path | None, review: bool, admins: list[str], readers: list[str], url: str) -> Tokens:
    if (file is None) != review:
        raise ConfigError(
            "expected either --token-file or --token-review",
            hint='echo "admin me $(openssl rand -hex 32)" > tokens; chmod 600 tokens',
        )
    if file is not None:
        if admins or readers or url:
            raise ConfigError("--admin-account, --reader-account and --api-server go with --token-review")
        return FileTokens(file)
    if not admins:
        raise ConfigError("--token-review without --admin-account: nobody could change anything")
    return ReviewedTokens(api_server_post(url), admins=admins, readers=readers)


def _check_certificate(certificate: Path, key: Path) -> None:
    """Before anything starts; a key with a passphrase is refused rather than asked for, since nobody may be there."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as exc:
        raise ConfigError(
            f"--tls-cert {certificate} with --tls-key {key}: {getattr(exc, 'reason', None) or exc}",
            hint="expected a PEM certificate chain and its own private key, without a passphrase",
        ) from exc
