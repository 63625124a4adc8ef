# SPDX-License-Identifier: Apache-2.0
"""`slacktier probe`: what a kubelet sees of an engine that is ready, is not, or has no plugin."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from slacktier_cli.main import app


@contextmanager
def answering(code: int, text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/readyz"
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def probe(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["probe", *arguments])
    return done.exit_code, done.stdout


def test_an_engine_that_looked_rows_up_is_ready() -> None:
    with answering(200, "ready\n") as url:
        assert probe("--url", url) == (0, "ready\n")


def test_an_engine_that_has_not_yet_says_why() -> None:
    with answering(503, "rank 1: the model is being loaded\n") as url:
        assert probe("--url", url) == (1, "not ready: rank 1: the model is being loaded\n")


def test_an_engine_without_the_plugin_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is the configuration's; nobody listens there."""
    with answering(200, "ready") as url:
        port = url.rsplit(":", 1)[1]
    tables = [{"layer": 1, "sources": [{"tier": "nvme", "paths": ["/t"]}]}]
    monkeypatch.setenv("SLACKTIER_CONFIG", json.dumps({"tables": tables, "listen": {"port": int(port)}}))
    code, out = probe("--json")
    assert code == 1
    assert json.loads(out)["ready"] is False
    assert f"127.0.0.1:{port} does not answer" in json.loads(out)["reason"]
