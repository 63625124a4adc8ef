# SPDX-License-Identifier: Apache-2.0
"""`slacktier status --cluster` without one: what it shows of the operator's objects, and what it says if it cannot."""

from __future__ import annotations

import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from slacktier.crd_model import GROUP, VERSION
from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.cluster_objects import ClusterReader
from slacktier_cli.cluster_tables import cluster_tables
from slacktier_cli.main import main

READY = {"type": "Ready", "status": "True", "reason": "Serving", "message": "every layer can be read"}
DECIDED = {
    "layerId": 1, "pool": "memory", "tier": "tcp", "windowMs": 0.1, "readMs": 0.25, "marginMs": -0.15, "stallMs": 0.15,
    "cacheRows": 20000, "reason": "the read outlasts the window",
}  # fmt: skip
EVERYTHING: dict[str, list[dict[str, Any]]] = {
    "lookuptables": [{"metadata": {"namespace": "a", "name": "t"}, "spec": {"layers": [1, 14], "model": "m"}}],
    "tierpools": [
        {
            "metadata": {"name": "memory"}, "spec": {"tier": "tcp"},
            "status": {"read": {"aUs": 250, "bUs": 0.25}, "measured": True, "readyMembers": "2/2", "free": "1Gi"},
        }
    ],
    "tableplacements": [
        {
            "metadata": {"namespace": "a", "name": "p"}, "spec": {},
            "status": {
                "conditions": [READY], "layers": [DECIDED],
                "plan": {"id": "abc", "layers": [{**DECIDED, "pool": "disks", "tier": "nvme"}]},
            },
        }
    ],
    "tablebindings": [
        {
            "metadata": {"namespace": "a", "name": "pod-1"},
            "spec": {
                "placement": {"namespace": "a", "name": "p"},
                "layers": [{"layerId": 1, "replicas": ["r1", "r2"], "tier": "tcp"}],
            },
            "status": {"inForce": True, "layers": [{"layerId": 1, "replica": "r2", "hitRate": 0.732, "readMs": 0.31}]},
        }
    ],
}  # fmt: skip


def test_tables_show_each_kind_with_figures_and_reasons() -> None:
    text = io.StringIO()
    Console(file=text, width=250, highlight=False).print(cluster_tables(EVERYTHING))
    lines = text.getvalue().splitlines()

    def line(*parts: str) -> bool:
        return any(all(part in each for part in parts) for each in lines)

    assert line("a/t", "the operator has not looked at it yet")
    assert line("memory", "2/2", "250 + 0.25 a page (measured)")
    assert line("a/p", "True", "Serving", "every layer can be read")
    assert line("in force", "memory", "0.100", "0.250", "-0.150", "20,000", "the read outlasts the window")
    assert line("plan abc", "disks", "nvme")
    assert line("a/pod-1", "a/p", "r2", "0.310", "73.2%", "yes")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Iterator[Path]:
    """An API server that knows tierpools only and answers 404 for the other kinds."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == f"/apis/{GROUP}/{VERSION}/tierpools"
            body = json.dumps({"items": EVERYTHING["tierpools"]} if known else {"message": "no such kind"}).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """No lines in the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield write_kubeconfig(tmp_path, server.server_address[1])
        server.shutdown()


def write_kubeconfig(folder: Path, port: int) -> Path:
    path = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    whole = {"clusters": [cluster], "users": [{"name": "u", "user": {}}], "contexts": [context], "current-context": "c"}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **whole}), encoding="utf-8")
    return path


def test_missing_definitions_are_said(kubeconfig: Path) -> None:
    with pytest.raises(SlackTierError, match="HTTP 404") as caught:
        ClusterReader(kubeconfig).everything()
    assert "installed" in caught.value.hint


def test_a_server_that_does_not_answer_is_said(tmp_path: Path) -> None:
    with pytest.raises(SlackTierError, match=f"list lookuptables.{GROUP}"):
        ClusterReader(write_kubeconfig(tmp_path, 1)).everything()


@pytest.mark.parametrize("text", [None, "", "junk: [", "- 1\n", "current-context: gone\n"])
def test_a_kubeconfig_that_is_none_is_bad_input(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match="no cluster to ask"):
        ClusterReader(path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--cluster", "--token-file", "t"], "give only one kind"),
        (["--kubeconfig", "k", "--url", "http://tierd:1"], "give only one kind"),
        ([], "--cluster"),
    ],
)
def test_mixed_or_missing_options_exit_2(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["slacktier", "status", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert says in capsys.readouterr().err
