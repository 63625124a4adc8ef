# SPDX-License-Identifier: Apache-2.0
"""Emulated engines as containers of the cluster, and streams that are asked of them: each must end as it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import objects
from harness import Cluster, RefusedError
from system import TIERD, System

CACHE: Final = Path(os.environ.get("SLACKTIER_CLUSTER_CACHE", Path.home() / ".cache/slacktier/cluster"))
IMAGE: Final = CACHE / "images/slacktier-emulated.tar"
NO_IMAGE: Final = "needs the emulated engine's image: make cluster-images"
LAYERS: Final = (1, 14)
PORT: Final = 8000


def prepare(system: System) -> Path:
    """A checkpoint whose every row can be checked; its config.json and tierd's token where pods can mount them."""
    folder = system.folder / "checkpoint"
    if not folder.exists():
        command = [str(Path(sys.executable).parent / "slacktier"), "make-checkpoint", str(folder)]
        subprocess.run([*command, "--size", "40M", "--seed", "5"], check=True, capture_output=True, timeout=120)
        system.cluster.run("load", str(IMAGE), timeout_s=300)
    metadata = {"name": "engine", "namespace": "default"}
    config = {"config.json": (folder / "config.json").read_text(encoding="utf-8")}
    system.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": config},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"token": system.token}},
    )
    return folder


def engine_pod(name: str, *, disks: Path | None = None, **spec: Any) -> dict[str, Any]:
    """A serving pod with the emulated engine; disks: where the node's region files are, seen under the same path."""
    tables = [part for layer in LAYERS for part in ("--table", f"{layer}=default.tiny.l{layer}")]
    mounts = [{"name": "config", "mountPath": "/config"}, {"name": "secret", "mountPath": "/secret"}]
    volumes: list[dict[str, Any]] = [
        {"name": "config", "configMap": {"name": "engine"}},
        {"name": "secret", "secret": {"secretName": "engine"}},
    ]
    if disks is not None:
        mounts.append({"name": "disks", "mountPath": str(disks)})
        volumes.append({"name": "disks", "hostPath": {"path": str(disks), "type": "Directory"}})
    container = {
        "name": "engine", "image": "localhost/slacktier-emulated:dev", "imagePullPolicy": "Never",
        "args": [
            "serve", "--tierd", TIERD, "--tierd-token-file", "/secret/token", "--instance", f"default.{name}",
            "--config", "/config/config.json", "--host", "$(POD_IP)", "--port", str(PORT), "--plan-sessions", "8",
            "--slo-pct", "400", "--drain-s", "0", "--token-file", "/secret/token", *tables,
        ],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": mounts,
        "securityContext": {"runAsNonRoot": True, "allowPrivilegeEscalation": False},
    }  # fmt: skip
    return objects.pod(name, containers=[container], volumes=volumes, **spec)


def call(cluster: Cluster, pod: str, path: str, body: dict[str, Any] | None = None, token: str = "") -> str:
    """A request to the pod's server, from the cluster's network; raises RefusedError where it does not answer 200."""
    address = cluster.get("pod", pod)["status"].get("podIP")
    if not address:
        raise RefusedError(f"{pod} has no address yet")
    post = ["-H", "Content-Type: application/json", "-d", json.dumps(body)] if body else []
    login = ["-H", f"Authorization: Bearer {token}"] if token else []
    return cluster.run(
        "exec", "curl", "-sSf", "--max-time", "50", *post, *login, f"http://{address}:{PORT}{path}"
    )  # fmt: skip


def stream(cluster: Cluster, pod: str, prompt: list[int], tokens: int) -> str:
    """The whole text of one streamed answer."""
    return call(cluster, pod, "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "stream": True})


def checked_rows(cluster: Cluster, pod: str) -> tuple[int, int]:
    """(rows that the engine has checked, of these the wrong ones) since its start."""
    report = json.loads(call(cluster, pod, "/slacktier/report"))
    return report["rows_checked"], report["mismatched_rows"]


@dataclass
class Streams:
    """Answers asked for without a pause; `broken` holds what did not end with [DONE]."""

    cluster: Cluster
    ended: int = 0
    broken: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def add(self, pod: str, count: int = 1) -> None:
        """So many more sessions at that pod."""
        for _ in range(count):
            thread = threading.Thread(target=self._ask, args=(pod, len(self._threads)), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _ask(self, pod: str, number: int) -> None:
        while not self._over.is_set():
            try:
                said = stream(self.cluster, pod, [1000 + number, 2000, 17, 300], 256)
            except (RefusedError, subprocess.TimeoutExpired) as exc:
                self.broken.append(f"{pod}: {exc}")
                return
            if not said.rstrip().endswith("data: [DONE]") or '"error"' in said:
                self.broken.append(f"{pod}: {said[-300:]}")
                return
            self.ended += 1

    def end(self) -> None:
        """After the answers that are under way."""
        self._over.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()


@contextmanager
def streams(cluster: Cluster) -> Iterator[Streams]:
    found = Streams(cluster)
    try:
        yield found
    finally:
        found.end()
