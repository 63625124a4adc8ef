# SPDX-License-Identifier: Apache-2.0
"""A rollout for the fault tests: two copies of two layers, three pods, and the one end that it may have.

What was staged is counted in tierd's own audit lines, which a restart of tierd does not lose.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import objects
from harness import wait_for
from system import System

LAYERS = (1, 14)
NODES = ("node1", "node2")
PODS = ("p0", "p1", "p2")
COPIES = sorted(f"default.tiny.l{layer}.memory.{node}" for layer in LAYERS for node in NODES)


@dataclass
class Rollout:
    """begin() it, break something, and see that it ends as if nothing had been."""

    system: System
    _lines_before: int = field(init=False)

    def __post_init__(self) -> None:
        self._lines_before = len(self._log())

    def begin(self, **spec: Any) -> None:
        cluster = self.system.cluster
        cluster.apply(objects.table(), objects.pool("memory", *NODES), objects.placement(replicas=2, **spec))
        cluster.apply(*(objects.pod(name) for name in PODS))

    def stagings(self) -> Counter[str]:
        """How often each copy was filled since this rollout was made: when it was created, and when it had gone."""
        found: Counter[str] = Counter()
        for line in self._log()[self._lines_before :]:
            if '{"audit": ' not in line:
                continue
            entry = json.loads(line[line.index('{"audit": ') :])
            created = entry["kind"] == "replicas" and entry["outcome"] == "created"
            if created or entry["audit"] == "memory-node-gone":
                found[entry["name"]] += 1
        return found

    def _log(self) -> list[str]:
        return self.system.tierd.log.read_text(errors="replace").splitlines()

    def wait_for_the_end(self, within_s: float = 150, lost: Collection[str] = ()) -> None:
        """Serving, all pods running with both copies of both layers in their bindings, and each copy filled once.

        lost  copies that went with a memory node, which are filled once more
        """
        wait_for("the one state that a rollout ends in", self.is_over, within_s=within_s)
        found = dict(self.stagings())
        assert found == {name: 1 + (name in lost) for name in COPIES}, found

    def is_over(self) -> bool:
        """Is all as it ends without a fault?"""
        cluster, system = self.system.cluster, self.system
        pods = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in cluster.items("pods")}
        bindings = {each["metadata"]["name"]: each["spec"]["layers"] for each in cluster.items("tablebindings")}
        copies = {
            name: sorted(copy for layer in layers for copy in layer["replicas"]) for name, layers in bindings.items()
        }
        at_tierd = {item["name"]: item["status"]["state"] for item in system.items("replicas")}
        return (
            cluster.ready("tableplacement", "tiny") == ("True", "Serving")
            and cluster.get("tableplacement", "tiny")["status"]["stagedPercent"] == 100
            and pods == dict.fromkeys(PODS, "Running")
            and copies == dict.fromkeys(PODS, COPIES)
            and at_tierd == dict.fromkeys(COPIES, "complete")
            and sorted(item["name"] for item in system.items("bindings")) == [f"default.{name}" for name in PODS]
        )
