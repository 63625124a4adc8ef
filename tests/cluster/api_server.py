# SPDX-License-Identifier: Apache-2.0
"""An API server and its etcd alone, on free ports of loopback: up in seconds, without root, for what needs no node."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from harness import CALL_S, RefusedError, wait_for

TOKEN: Final = "0" * 32  # of a server that lives as long as a test, on loopback
CACHE: Final = Path(os.environ.get("SLACKTIER_CLUSTER_CACHE", Path.home() / ".cache/slacktier/cluster"))


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass(frozen=True)
class ApiServer:
    port: int
    ca_file: Path

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints; raises RefusedError with what it said."""
        server = ["--server", f"https://127.0.0.1:{self.port}", "--insecure-skip-tls-verify", "--token", TOKEN]
        done = subprocess.run(
            [str(CACHE / "bin/kubectl"), *server, *arguments],
            input=stdin, capture_output=True, text=True, timeout=CALL_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RefusedError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def accept(self, manifests: str) -> str:
        """A server-side dry run: all that the server checks, and nothing is kept."""
        return self.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=manifests)


def _etcd(folder: Path, client: int, peer: int) -> list[str]:
    urls = [f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"]
    return [
        str(CACHE / "bin/etcd"), "--data-dir", str(folder / "etcd"), "--listen-client-urls", urls[0],
        "--advertise-client-urls", urls[0], "--listen-peer-urls", urls[1],
    ]  # fmt: skip


def _api_server(folder: Path, port: int, etcd: int) -> list[str]:
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens").write_text(f"{TOKEN},admin,admin,system:masters\n")
    return [
        str(CACHE / "bin/kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{etcd}", "--cert-dir",
        str(folder / "certificates"), "--secure-port", str(port), "--bind-address", "127.0.0.1",
        "--advertise-address", "127.0.0.1", "--service-account-issuer", "https://kubernetes.default.svc",
        "--service-account-key-file", str(key), "--service-account-signing-key-file", str(key),
        "--token-auth-file", str(folder / "tokens"), "--service-cluster-ip-range", "10.96.0.0/16",
        # In a dry run the accounts that pods name are not there yet.
        "--disable-admission-plugins", "ServiceAccount",
    ]  # fmt: skip


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServer]:
    """A server that answers; it and what it holds are gone afterwards."""
    client, peer, port = _free_ports(3)
    found = ApiServer(port, folder / "certificates/apiserver.crt")
    with ExitStack() as stack:
        for name, command in (("etcd", _etcd(folder, client, peer)), ("api", _api_server(folder, port, client))):
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
            stack.callback(process.kill)
        wait_for("the API server", lambda: found.kubectl("get", "--raw", "/readyz"), within_s=90)
        yield found
