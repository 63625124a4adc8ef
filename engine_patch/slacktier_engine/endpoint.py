# SPDX-License-Identifier: Apache-2.0
"""HTTP of one rank: /readyz, /livez, /metrics, /status, and PUT /binding for a loopback peer that knows the token.

The ranks of a machine listen on port, port + 1, ...; /readyz of the first one answers for all of them.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from slacktier import __version__
from slacktier.errors import ConfigError, SlackTierError
from slacktier_engine.control import Watcher, apply_binding
from slacktier_engine.exposition import exposition
from slacktier_engine.runtime import EngineTier
from slacktier_engine.settings import parse_binding

_BODY_BYTES_MAX: Final = 1 << 20
_SOCKET_TIMEOUT_S: Final = 10.0
_PEER_TIMEOUT_S: Final = 2.0
_TOKEN_BYTES_MIN: Final = 16


class Endpoint:
    """Starts once the rank is known; lives as long as the process."""

    def __init__(self, tier: EngineTier) -> None:
        self._tier = tier
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Listen and watch; raises ConfigError where the port is taken or the token cannot be read."""
        if self._server is not None:
            return
        tier, listen = self._tier, self._tier.settings.listen
        port = listen.port + local_index(tier)
        handler = type("Handler", (_Handler,), {"tier": tier, "token": _token(tier)})
        try:
            self._server = ThreadingHTTPServer((listen.host, port), handler)
        except OSError as exc:
            raise ConfigError(
                f"listen: {listen.host}:{port}: {exc.strerror}",
                hint="each rank of a machine takes the next port; choose ones that are free",
            ) from exc
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="slacktier-http", daemon=True).start()
        Watcher(tier).start()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def local_index(tier: EngineTier) -> int:
    """The rank's place among those of its machine."""
    return tier.rank % tier.local_ranks


def _token(tier: EngineTier) -> bytes:
    path = tier.settings.listen.token_file
    if path is None:
        return b""
    try:
        token = path.read_bytes().strip()
    except OSError as exc:
        raise ConfigError(f"listen.token_file {path}: {exc.strerror}") from exc
    if len(token) < _TOKEN_BYTES_MIN:
        raise ConfigError(f"listen.token_file {path}: {len(token)} bytes, expected at least {_TOKEN_BYTES_MIN}")
    return token


def status(tier: EngineTier) -> dict[str, Any]:
    """What is in force on this rank."""
    layers = []
    for group in tier.groups:
        totals = group.core.stats()
        for index, table in enumerate(group.tables):
            layers.append(
                {
                    "layer": table.layer_id,
                    "rows": table.row_count,
                    "sources": [source.label for source in group.core.sources(index)],
                    "cache_rows": totals[table.layer_id]["cache_rows"],
                    "host_cache_rows": totals[table.layer_id]["host_rows"],
                    "check_rate": group.checker.rate,
                    "lossy": table.layer_id in group.seen,
                    "backend": group.core.backend,
                    "is_polled": group.core.is_polled,
                }
            )
    return {
        "version": __version__, "state": tier.state, "reason": tier.reason, "rank": tier.rank, "tp": tier.tp,
        "striped": tier.striped, "model": tier.model, "layers": layers,
    }  # fmt: skip


def _not_ready(tier: EngineTier) -> list[str]:
    """Why this rank, and for the first of a machine any other one there, is not ready; [] if all are."""
    found = [] if tier.is_ready else [f"rank {tier.rank}: {tier.reason}"]
    if local_index(tier) == 0:
        peers = range(1, tier.local_ranks)
        found += [why for at in peers if (why := _peer_not_ready(tier.settings.listen.port + at, tier.rank + at))]
    return found


def _peer_not_ready(port: int, rank: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=_PEER_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as exc:
        return exc.read(1000).decode(errors="replace").strip() or f"rank {rank}: HTTP {exc.code}"
    except OSError as exc:
        return f"rank {rank}: port {port}: {getattr(exc, 'reason', exc)}"


class _Handler(BaseHTTPRequestHandler):
    tier: EngineTier
    token: bytes
    timeout = _SOCKET_TIMEOUT_S
    server_version = "slacktier"
    sys_version = ""

    def do_GET(self) -> None:
        if self.path == "/readyz":
            reasons = _not_ready(self.tier)
            self._text(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, "\n".join(reasons) or "ready")
        elif self.path == "/livez":
            self._text(HTTPStatus.OK, "alive")
        elif self.path == "/metrics":
            self._send(HTTPStatus.OK, exposition(self.tier), "text/plain; version=0.0.4; charset=utf-8")
        elif self.path == "/status":
            self._send(HTTPStatus.OK, json.dumps(status(self.tier)).encode(), "application/json")
        else:
            self._text(HTTPStatus.NOT_FOUND, "expected /readyz, /livez, /metrics or /status")

    def do_PUT(self) -> None:
        if self.path != "/binding":
            self._text(HTTPStatus.NOT_FOUND, "expected /binding")
            return
        if not self._may_control():
            self._text(HTTPStatus.FORBIDDEN, "a binding needs the bearer token and a peer on this machine")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _BODY_BYTES_MAX:
            self._text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected a body of at most {_BODY_BYTES_MAX} bytes")
            return
        try:
            apply_binding(self.tier, parse_binding(self.rfile.read(int(length)).decode(errors="replace"), "binding"))
        except ConfigError as exc:
            self._text(HTTPStatus.UNPROCESSABLE_ENTITY, str(exc))
        except SlackTierError as exc:
            self._text(HTTPStatus.CONFLICT, str(exc))
        else:
            self._text(HTTPStatus.OK, "in force")

    def _may_control(self) -> bool:
        given = self.headers.get("Authorization", "").encode()
        is_near = ipaddress.ip_address(self.client_address[0]).is_loopback
        return bool(self.token) and is_near and hmac.compare_digest(given, b"Bearer " + self.token)

    def _text(self, code: HTTPStatus, text: str) -> None:
        self._send(code, text.encode() + b"\n", "text/plain; charset=utf-8")

    def _send(self, code: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Probes come every few seconds; the engine's log is not for them."""
