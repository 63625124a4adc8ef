# SPDX-License-Identifier: Apache-2.0
"""Ray, tierd and the operator as processes in the cluster's network: the real ones, without the time that images take.

Ray's nodes bear the names of the cluster's, so that a pool's members are on them. The operator logs in as its own
ServiceAccount: what its role lacks, it cannot do here either.
"""

from __future__ import annotations

import json
import secrets
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from harness import ROOT, Cluster, Process, RefusedError, wait_for

ADDRESS = "10.99.0.1"
TIERD = f"http://{ADDRESS}:8700"
NAMESPACE = "slacktier-system"


@dataclass
class System:
    """All of it; close() ends what was started."""

    cluster: Cluster
    folder: Path
    tierd: Process
    operator: Process
    rays: list[Process]
    token: str

    def api(self, path: str) -> Any:
        """A GET of tierd's API, from the cluster's network."""
        text = self.cluster.run("exec", "curl", "-sf", "-H", f"Authorization: Bearer {self.token}", f"{TIERD}{path}")
        return json.loads(text)

    def items(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.api(f"/v1/{kind}")["items"]
        return found

    def clear(self) -> None:
        """Delete all that a test made, and wait until tierd has nothing left of it."""
        if not self.operator.is_running:
            self.operator.start()
        kinds = "tableplacements,lookuptables,tablebindings,pods"
        self.cluster.kubectl("delete", kinds, "--all", "-n", "default", "--timeout=60s", timeout_s=90)
        self.cluster.kubectl("delete", "tierpools", "--all", "--timeout=60s", timeout_s=90)
        wait_for("tierd to be empty", lambda: not self.items("replicas") and not self.items("tables"), within_s=60)

    def close(self) -> None:
        for process in (self.operator, self.tierd, *reversed(self.rays)):
            process.stop()


def start(cluster: Cluster, folder: Path) -> System:
    """Everything up: the operator watches, tierd has Ray's nodes."""
    cluster.kubectl("apply", "--server-side", "-f", str(ROOT / "operator/crds"))
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    cluster.apply(namespace)
    cluster.kubectl("apply", "-f", str(ROOT / "operator/deploy/rbac.yaml"))
    token = secrets.token_hex(32)
    (folder / "tokens").write_text(f"admin operator {token}\n")
    (folder / "tokens").chmod(0o600)
    (folder / "token").write_text(token)
    rays = _rays(folder)
    for ray in rays:
        ray.start()
    tierd = _tierd(folder)
    tierd.start()
    operator = _operator(cluster, folder)
    operator.start()
    system = System(cluster, folder, tierd, operator, rays, token)
    try:
        wait_for("tierd", lambda: _answers(system), within_s=120)
    except AssertionError:
        print(tierd.tail(), file=sys.stderr)
        system.close()
        raise
    return system


def _answers(system: System) -> bool:
    return isinstance(system.api("/v1/pools")["items"], list)


def _rays(folder: Path) -> list[Process]:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    common = [f"--node-ip-address={ADDRESS}", "--num-cpus=1", "--object-store-memory=80000000", "--block"]
    ray = str(Path(sys.executable).parent / "ray")
    head = [ray, "start", "--head", "--port=6379", "--include-dashboard=false", "--node-name=head",
            f"--temp-dir={folder / 'ray'}"]  # fmt: skip
    processes = [Process([*head, *common], folder / "ray-head.log", quiet)]
    resources = '--resources={"nvme":8,"memory_node":64}'
    for node in ("node1", "node2"):
        join = [ray, "start", f"--address={ADDRESS}:6379", f"--node-name={node}", resources]
        # Started before the head answers, a node asks again until it does.
        retry = ["bash", "-c", 'until "$@"; do sleep 1; done', "join", *join, *common]
        processes.append(Process(retry, folder / f"ray-{node}.log", quiet))
    return processes


def _tierd(folder: Path) -> Process:
    command = [
        str(Path(sys.executable).parent / "slacktier"), "tierd", "--token-file", str(folder / "tokens"), "--state",
        str(folder / "tierd.sqlite"), "--decide", "operator", "--host", ADDRESS, "--run-dir", str(folder / "run"),
        "--ray-address", f"{ADDRESS}:6379", "--advertise", ADDRESS,
    ]  # fmt: skip
    return Process(command, folder / "tierd.log", {"RAY_AUTH_MODE": "disabled"})


def _operator(cluster: Cluster, folder: Path) -> Process:
    admin = yaml.safe_load(cluster.run("kubectl", "config", "view", "--raw", "-o", "json"))
    token = wait_for("a token", lambda: _account_token(cluster), within_s=20)
    admin["users"] = [{"name": "operator", "user": {"token": token}}]
    admin["contexts"] = [{"name": "operator", "context": {"cluster": admin["clusters"][0]["name"], "user": "operator"}}]
    admin["current-context"] = "operator"
    (folder / "operator.conf").write_text(yaml.safe_dump(admin))
    command = [
        str(Path(sys.executable).parent / "kopf"), "run", "-m", "slacktier_operator.main", "--standalone",
        "--all-namespaces", "--liveness=http://127.0.0.1:8099/healthz",
    ]  # fmt: skip
    environment = {
        "KUBECONFIG": str(folder / "operator.conf"), "SLACKTIER_TIERD_URL": TIERD,
        "SLACKTIER_TOKEN_FILE": str(folder / "token"), "SLACKTIER_POLL_S": "1",
        "SLACKTIER_RESYNC_S": "20",
    }  # fmt: skip
    return Process(command, folder / "operator.log", environment)


def _account_token(cluster: Cluster) -> str:
    try:
        return cluster.kubectl("create", "token", "slacktier-operator", "-n", NAMESPACE, "--duration=2h").strip()
    except RefusedError:
        return ""


def kill(process: Process) -> None:
    """As a crash: no clean-up."""
    process.stop(signal.SIGKILL)


__all__ = ["ADDRESS", "NAMESPACE", "TIERD", "System", "kill", "start"]
