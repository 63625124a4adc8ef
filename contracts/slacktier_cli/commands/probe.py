# SPDX-License-Identifier: Apache-2.0
"""`slacktier probe`: is the engine in this pod serving from its tier? For readiness probes and for people."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Annotated, Final

import typer

from slacktier.errors import ConfigError
from slacktier_engine.plugin import CONFIG_VARIABLE
from slacktier_engine.settings import Listen, load_settings

_ANSWER_BYTES_MAX: Final = 65_536


def _url() -> str:
    """Of the first rank on this machine, as SLACKTIER_CONFIG has it."""
    config = os.environ.get(CONFIG_VARIABLE)
    port = load_settings(config).listen.port if config else Listen().port
    return f"http://127.0.0.1:{port}"


def ask(url: str, timeout_s: float) -> tuple[bool, str]:
    """(ready, what the endpoint says, or why nobody answered)."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url {url}: expected http://HOST:PORT")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/readyz", timeout=timeout_s) as answer:  # noqa: S310 -- see above
            return True, answer.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip()
    except urllib.error.HTTPError as exc:
        return False, exc.read(_ANSWER_BYTES_MAX).decode(errors="replace").strip() or f"HTTP {exc.code}"
    except (OSError, ValueError) as exc:
        return False, f"{url} does not answer: {getattr(exc, 'reason', exc)}; the plugin is not running there"


def command(
    url: Annotated[str, typer.Option("--url", help="Endpoint; default: the port in SLACKTIER_CONFIG.")] = "",
    timeout_s: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the answer.")] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Exit 0 if the engine has looked rows up through its tier on all ranks, 1 if not, saying why.

    An engine whose plugin did not load has no such endpoint, so it is never ready.

    Examples:
      slacktier probe
      slacktier probe --url http://127.0.0.1:9640 --timeout 1
      slacktier probe --json | jq -r .reason
    """
    ready, reason = ask(url or _url(), timeout_s)
    if as_json:
        print(json.dumps({"ready": ready, "reason": reason}))
    else:
        print("ready" if ready else f"not ready: {reason}")
    if not ready:
        raise typer.Exit(1)
