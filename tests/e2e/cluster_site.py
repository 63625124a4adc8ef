# SPDX-License-Identifier: Apache-2.0
"""A cluster as it is before SlackTier comes, with disks and a volume for checkpoints; and a shell beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from harness import ROOT, SCRIPT, Cluster, RefusedError
from page import Section, sections

NAMESPACE: Final = "slacktier-system"
DISK_NODES: Final = ("node1", "node2")
MEMORY_NODES: Final = ("node2", "node3")
STATE: Final = Path(os.environ.get("SLACKTIER_CLUSTER_STATE", ROOT / "build/cluster")).resolve()
CACHE: Final = Path(os.environ.get("SLACKTIER_CLUSTER_CACHE", Path.home() / ".cache/slacktier/cluster"))
IMAGES: Final = ("operator", "tierd", "emulated", "loadtest")
_ENVIRONMENT: Final = {
    "REGISTRY": "localhost", "TAG": "dev", "DISK_NODES": " ".join(DISK_NODES), "MEMORY_NODES": " ".join(MEMORY_NODES),
}  # fmt: skip
_MOUNT_DISK: Final = """
mkdir -p /mnt/disks/slacktier /mnt/slacktier
mountpoint -q /mnt/slacktier || mount --bind /mnt/disks/slacktier /mnt/slacktier
"""


@dataclass
class Site:
    """One cluster, and a shell as the reader of the page has it."""

    cluster: Cluster
    folder: Path

    def prepare(self) -> None:
        """What is there before: on each node a disk under /mnt/slacktier, and a volume that all nodes see."""
        for node in DISK_NODES:
            self.on_node(node, _MOUNT_DISK)
        shared = self.folder / "checkpoints"
        shared.mkdir(exist_ok=True)
        os.chown(shared, 10001, 10001)
        self.cluster.apply(self.volume("checkpoints", shared))

    def free_volume(self, name: str) -> None:
        """A retained volume belongs to its claim also when that is gone, until an administrator gives it away again."""
        self.cluster.kubectl("patch", "persistentvolume", name, "--type=merge", "-p", '{"spec": {"claimRef": null}}')

    def volume(self, name: str, path: Path) -> dict[str, Any]:
        return {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "local",
                "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": str(path), "type": "Directory"},
            },
        }  # fmt: skip

    def on_node(self, node: str, command: str) -> str:
        return self.cluster.run("node", node, "sh", "-ec", command)

    def follow(self, section: str, *, timeout_s: float = 400) -> str:
        """Types a section's commands; what they printed."""
        found = sections()[section]
        for node in DISK_NODES if found.on_nodes else ():
            self.on_node(node, found.on_nodes)
        return self.shell(found, timeout_s=timeout_s)

    def shell(self, section: Section | str, *, timeout_s: float = 400) -> str:
        """bash with kubectl, helm and slacktier, in the repository's root; raises AssertionError with what it said."""
        commands = section if isinstance(section, str) else section.commands
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, **_ENVIRONMENT, "PATH": path}
        started = time.monotonic()
        done = subprocess.run(
            [str(SCRIPT), "exec", "bash", "-exuo", "pipefail", "-c", commands],
            capture_output=True, text=True, env=environment, cwd=ROOT, timeout=timeout_s, check=False,
        )  # fmt: skip
        name = "commands" if isinstance(section, str) else section.title
        print(f"{name}: {time.monotonic() - started:.0f} s")
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.state()}"
        return done.stdout

    def state(self) -> str:
        """For a failure's message: what is there, and what did not go well."""
        asked = (
            ("get", "pods,tableplacements,tierpools,lookuptables,tablebindings", "-A", "-o", "wide"),
            ("get", "events", "-A", "--field-selector=type=Warning", "--sort-by=.lastTimestamp"),
            ("logs", "-n", NAMESPACE, "statefulset/slacktier-head", "-c", "tierd", "--tail=15"),
        )
        said = []
        for command in asked:
            try:
                said.append(self.cluster.kubectl(*command)[-4000:])
            except (RefusedError, subprocess.TimeoutExpired) as exc:
                said.append(f"{command[0]}: {exc}")
        return "\n".join(said)

    def installed(self) -> bool:
        """Whether the page's release is there."""
        return "slacktier" in self.cluster.run("helm", "list", "-q", "-n", NAMESPACE).split()

    def api(self, path: str) -> Any:
        """A GET of tierd's API as the account of `helm test`, from the cluster's network."""
        token = self.cluster.kubectl("-n", NAMESPACE, "create", "token", "slacktier-test", "--audience", "slacktier")
        url = f"http://slacktier-head.{NAMESPACE}.svc.cluster.local:8700{path}"
        return json.loads(self.cluster.run("exec", "curl", "-sf", "-H", f"Authorization: Bearer {token.strip()}", url))

    def get(self, url: str) -> str:
        """The body of any answer, whatever its status."""
        return self.cluster.run("exec", "curl", "-s", "--max-time", "10", url)

    def pods(self, selector: str, namespace: str = NAMESPACE) -> list[dict[str, Any]]:
        return self.cluster.items("pods", "-n", namespace, "-l", selector)
