# SPDX-License-Identifier: Apache-2.0
"""The chart as Helm renders it, what is in it, and the toggles of which all combinations are looked at."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "helm/slacktier"
KUBERAY: Final = "ray.io/v1/RayCluster"
NAMESPACE: Final = "slacktier-system"
Object = dict[str, Any]


class RefusedError(Exception):
    """Helm failed; the text is what it said."""


def helm_binary() -> str:
    """As SLACKTIER_HELM says, else the one in the cache that `make helm-env` fills, else the system's."""
    cache = Path(os.environ.get("SLACKTIER_CLUSTER_CACHE", Path.home() / ".cache/slacktier/cluster"))
    found = os.environ.get("SLACKTIER_HELM") or shutil.which("helm", path=str(cache / "bin")) or shutil.which("helm")
    if not found:
        raise RefusedError("no helm: `make helm-env` compiles it, or SLACKTIER_HELM names one")
    return found


def helm(*arguments: str, stdin: str = "") -> str:
    """What a helm command prints."""
    done = subprocess.run(
        [helm_binary(), *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    if done.returncode:
        raise RefusedError(done.stderr.strip() or done.stdout.strip())
    return done.stdout


def template(values: Mapping[str, Any] | None = None, *, kuberay: bool = False, release: str = "slacktier") -> str:
    """`helm template` with these values over the chart's."""
    more = ["--api-versions", KUBERAY] if kuberay else []
    text = yaml.safe_dump(dict(values or {}))
    return helm("template", release, str(CHART), "--namespace", NAMESPACE, "--values", "-", *more, stdin=text)


@dataclass(frozen=True)
class Rendered:
    """All objects of one rendering."""

    objects: tuple[Object, ...]

    @classmethod
    def of(
        cls, values: Mapping[str, Any] | None = None, *, kuberay: bool = False, release: str = "slacktier"
    ) -> Rendered:
        text = template(values, kuberay=kuberay, release=release)
        return cls(tuple(each for each in yaml.safe_load_all(text) if each))

    def all(self, kind: str) -> list[Object]:
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str, name: str) -> Object:
        """Raises ValueError where there is not just one."""
        (found,) = (each for each in self.all(kind) if each["metadata"]["name"] == name)
        return found

    def pods(self) -> Iterator[tuple[str, Object]]:
        """(where it is from, metadata and spec) of every pod that this would make."""
        for each in self.objects:
            name = f"{each['kind']}/{each['metadata']['name']}"
            if each["kind"] == "Pod":
                yield name, each
            elif each["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
                yield name, each["spec"]["template"]
            elif each["kind"] == "RayCluster":
                yield f"{name}/head", each["spec"]["headGroupSpec"]["template"]
                for group in each["spec"]["workerGroupSpecs"]:
                    yield f"{name}/{group['groupName']}", group["template"]

    def pod(self, component: str) -> Object:
        """The pod of one component."""
        (found,) = (pod for _, pod in self.pods() if component_of(pod) == component)
        return found


def component_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def container(pod: Object, name: str) -> Object:
    (found,) = (each for each in pod["spec"]["containers"] if each["name"] == name)
    return dict(found)


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, later ones over earlier ones."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(key), dict)
            whole[key] = merged(whole[key], value) if both else value
    return whole


BLOCKS = [{"devicePath": "/dev/slacktier0", "storageClassName": "local-nvme", "size": "1Ti"}]
TOGGLES: dict[str, dict[str, Any]] = {
    "kuberay": {},
    "blocks": {"workers": {"nvme": {"blockVolumes": BLOCKS, "hostPath": ""}}},
    "rdma": {"workers": {"memory": {"rdma": {"enabled": True, "networks": "roce"}, "hugepages": {"size2Mi": "2Gi"}}}},
    "tls": {"tierd": {"tls": {"secretName": "tierd-tls"}, "persistence": {"enabled": True}}},
    "monitoring": {
        "metrics": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")}
    },
    "open": {
        "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}, "crds": {"install": False},
        "uninstall": {"deleteResources": True}, "security": {"seccompType": "Localhost"},
    },
}  # fmt: skip
COMBINATIONS = [
    frozenset(chosen) for count in range(len(TOGGLES) + 1) for chosen in itertools.combinations(TOGGLES, count)
]


def name_of(chosen: frozenset[str]) -> str:
    return "+".join(sorted(chosen)) or "defaults"


def values_of(chosen: frozenset[str]) -> dict[str, Any]:
    """Values of a combination; `kuberay` is what the cluster has, not a value."""
    return merged(*(TOGGLES[name] for name in chosen))
