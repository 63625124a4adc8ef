# SPDX-License-Identifier: Apache-2.0
"""The operator's settings, read once from its environment; the chart's values of the same names set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slacktier.errors import ConfigError

TOKEN_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path, not a token


@dataclass(frozen=True)
class OperatorSettings:
    """tierd_url          the head's service
    token_file            bearer token for tierd; read again for every call, since Kubernetes renews it
    ca_file               of tierd's certificate; empty: the system's
    resync_s              all objects are listed and looked at again so often, in case a watch lost a change
    poll_s                objects whose work goes on at tierd are looked at again so often
    liveness_port         of /healthz
    sources_path          where tierd's pods mount persistent volume claims: SOURCES_PATH/CLAIM
    """

    tierd_url: str
    token_file: Path = Path(TOKEN_FILE)
    ca_file: Path | None = None
    resync_s: float = 120.0
    poll_s: float = 2.0
    liveness_port: int = 8080
    sources_path: str = "/sources"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> OperatorSettings:
        """SLACKTIER_TIERD_URL and the others in capitals; raises ConfigError."""
        url = environ.get("SLACKTIER_TIERD_URL", "")
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"SLACKTIER_TIERD_URL is {url!r}, expected the URL of tierd's head")
        ca_file = environ.get("SLACKTIER_CA_FILE", "")
        return cls(
            tierd_url=url.rstrip("/"),
            token_file=Path(environ.get("SLACKTIER_TOKEN_FILE", TOKEN_FILE)),
            ca_file=Path(ca_file) if ca_file else None,
            resync_s=_number(environ, "SLACKTIER_RESYNC_S", cls.resync_s),
            poll_s=_number(environ, "SLACKTIER_POLL_S", cls.poll_s),
            liveness_port=int(_number(environ, "SLACKTIER_LIVENESS_PORT", cls.liveness_port)),
            sources_path=environ.get("SLACKTIER_SOURCES_PATH", cls.sources_path),
        )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, expected a number") from None
    if not 0 < value < 1e6:
        raise ConfigError(f"{name} is {text}, expected a number above 0")
    return value
