# SPDX-License-Identifier: Apache-2.0
"""The window rule end to end: engines in pods stream from an emulated disk, and something that it looks at changes.

Each time layer 1, whose window is short, moves to memory nodes first, its sentence says why, the placement changes at
most once in a stabilization window, and no stream breaks.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engines
import objects
import pytest
from harness import RefusedError, wait_for
from system import System

from slacktier_operator.status import seconds_of

pytestmark = pytest.mark.skipif(not engines.IMAGE.exists(), reason=engines.NO_IMAGE)
PODS = ("e1", "e2")
STABLE_S = 15
MOVED = ["memory", "disks"]
Places = list[str]


@dataclass
class Run:
    """A placement of which both layers are on the disk, two engines that stream, and every change that was seen."""

    system: System
    disks: Path
    streams: engines.Streams
    changes: list[tuple[str, Places]] = field(default_factory=list)

    def pool(self, a_us: float) -> dict[str, Any]:
        """The emulated disk of each node; what it emulates is what the rule reckons with."""
        members = [{"name": node, "node": node, "path": str(self.disks / node)} for node in ("node1", "node2")]
        return objects.pool(
            "disks", tier="emulated", members=members, read={"aUs": a_us, "bUs": 2.5}, cost=0.1
        )  # fmt: skip

    def look(self) -> tuple[Places, dict[str, Any]]:
        """(each layer's pool, the status); notes a change."""
        status = self.system.cluster.get("tableplacement", "tiny").get("status", {})
        places = [layer["pool"] for layer in status.get("layers", ())]
        seen = (status.get("changedAt", ""), places)
        if places and (not self.changes or self.changes[-1][1] != places):
            self.changes.append(seen)
        return places, status

    def wait_for_places(self, wanted: Places, within_s: float) -> dict[str, Any]:
        found: dict[str, Any] = wait_for(
            f"layers on {wanted}", lambda: (seen := self.look())[0] == wanted and seen[1], within_s=within_s
        )
        return found

    def watch(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.look()
            time.sleep(0.5)


@pytest.fixture
def run(clean: System) -> Iterator[Run]:
    """Both layers on the disk: 100 us and 2.5 us a page of each of four ranks, so a step waits some 0.1 ms of 0.22."""
    cluster, checkpoint = clean.cluster, engines.prepare(clean)
    disks = clean.folder / "disks"
    for node in ("node1", "node2"):
        (disks / node).mkdir(parents=True, exist_ok=True)
    with engines.streams(cluster) as streams:
        found = Run(clean, disks, streams)
        curve = [{"cacheRows": 0, "pages": 4}]
        layers = [{"layerId": 1, "windowMs": 0.1, "misses": curve}, {"layerId": 14, "windowMs": 3.5, "misses": curve}]
        cluster.apply(
            objects.table(source={"path": str(checkpoint)}), found.pool(100),
            objects.pool("memory", "node1", "node2", read={"aUs": 50}, cost=5.0),
            objects.placement(
                replicas=2, sloPercent=2, cacheRowsPerRank=0, layers=layers, stabilizationWindowSeconds=STABLE_S
            ),
            *(
                engines.engine_pod(f"e{i}", disks=disks, nodeSelector={"kubernetes.io/hostname": f"node{i}"})
                for i in (1, 2)
            ),
        )  # fmt: skip
        for name in PODS:
            wait_for(f"{name} to answer", lambda name=name: engines.call(cluster, name, "/readyz"), within_s=120)
        for name in PODS:
            streams.add(name)
        found.wait_for_places(["disks", "disks"], 30)
        found.watch(STABLE_S)
        assert [places for _, places in found.changes] == [["disks", "disks"]]
        yield found


def slower_disk(run: Run) -> None:
    run.system.cluster.apply(run.pool(1500))


def more_sessions(run: Run) -> None:
    for name in PODS:
        run.streams.add(name, 8)


def more_instances(run: Run) -> None:
    """Ten more pods at the same two disks: they say nothing, so the rule takes them to be as busy as the others."""
    run.system.cluster.apply(*(objects.pod(f"more{i}") for i in range(10)))


def shorter_window(run: Run) -> None:
    """Both engines reach layer 1 sooner: hardly any time to read in."""
    for name in PODS:
        body = {"profile": {"windows_ms": {"1": 0.001, "14": 3.5}, "step_ms": 5.0}}
        engines.call(run.system.cluster, name, "/slacktier/control", body, token=run.system.token)


LONG = [pytest.param(each, marks=pytest.mark.full) for each in (more_sessions, more_instances, shorter_window)]


@pytest.mark.parametrize("change", [slower_disk, *LONG])
def test_layer_1_moves_first_and_says_why(run: Run, change: Callable[[Run], None]) -> None:
    cluster = run.system.cluster
    change(run)
    status = run.wait_for_places(MOVED, within_s=90)
    first = status["layers"][0]
    print(f"{change.__name__}: {first['reason']}")
    assert first["reason"].startswith("layer 1 on memory (tcp)")
    assert "disks is cheaper but there the step would wait" in first["reason"]

    def followed() -> bool:
        """Do both engines read layer 1 from memory nodes, by the bindings that they have?"""
        bindings = [cluster.get("tablebinding", name)["status"] for name in PODS]
        return all(
            each.get("inForce") and [layer["tier"] for layer in each["layers"]] == ["tcp", "emulated"]
            for each in bindings
        )

    wait_for("the engines to follow", followed, within_s=60)
    run.watch(2 * STABLE_S)
    times = [seconds_of(when) for when, _ in run.changes]
    assert all(later - earlier >= STABLE_S for earlier, later in itertools.pairwise(times)), run.changes
    assert [places for _, places in run.changes] == [["disks", "disks"], MOVED]
    run.streams.end()
    print(f"{run.streams.ended} streams ended, {len(run.streams.broken)} broken; changes {json.dumps(run.changes)}")
    assert run.streams.broken == []
    assert run.streams.ended >= len(PODS)
    for name in PODS:
        try:
            checked, wrong = engines.checked_rows(cluster, name)
        except RefusedError as exc:
            raise AssertionError(f"{name} does not answer any more: {exc}") from exc
        assert checked > 0
        assert wrong == 0
