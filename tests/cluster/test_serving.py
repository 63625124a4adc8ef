# SPDX-License-Identifier: Apache-2.0
"""Emulated engines as containers of the cluster, bound by the operator: their streams run and every row is checked."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import engines
import objects
import pytest
from harness import wait_for
from system import System, kill

pytestmark = pytest.mark.skipif(not engines.IMAGE.exists(), reason=engines.NO_IMAGE)
PODS = ("e1", "e2")
ENDS_S = 60
SLACKTIER = str(Path(sys.executable).parent / "slacktier")


@pytest.fixture
def serving(clean: System) -> System:
    """Two engines on two nodes, each with both copies in its binding, that have answered."""
    cluster, checkpoint = clean.cluster, engines.prepare(clean)
    cluster.apply(
        *(engines.engine_pod(f"e{i}", nodeSelector={"kubernetes.io/hostname": f"node{i}"}) for i in (1, 2)),
        objects.table(source={"path": str(checkpoint)}), objects.pool("memory", "node1", "node2"),
        objects.placement(replicas=2),
    )  # fmt: skip
    for name in PODS:
        wait_for(f"{name} to answer", lambda name=name: engines.call(cluster, name, "/readyz"), within_s=120)
    return clean


def in_force(system: System, name: str) -> bool:
    return bool(system.cluster.get("tablebinding", name).get("status", {}).get("inForce"))


def test_engines_in_pods_on_two_nodes_serve_checked_rows(serving: System) -> None:
    cluster = serving.cluster
    assert [cluster.get("pod", name)["spec"]["nodeName"] for name in PODS] == ["node1", "node2"]
    for name in PODS:
        answer = engines.stream(cluster, name, [1000, 2000, 17, 300], 64)
        assert answer.rstrip().endswith("data: [DONE]")
        checked, wrong = engines.checked_rows(cluster, name)
        print(f"{name}: {checked} rows checked, {wrong} wrong")
        assert checked > 64
        assert wrong == 0
        wait_for(f"{name}'s binding in force", lambda name=name: in_force(serving, name), within_s=60)
    wait_for(
        "windows from the pods", lambda: "pods report windows and reads" in cluster.kubectl("describe", "tpl", "tiny"),
        within_s=60,
    )  # fmt: skip
    assert "window" in cluster.kubectl("describe", "tpl", "tiny")
    # As the operator's own account, which may list the four kinds.
    status = [SLACKTIER, "status", "--kubeconfig", str(serving.folder / "operator.conf")]
    shown = cluster.run("exec", "env", "COLUMNS=300", *status)
    for part in ("default/tiny", "Serving", "in force", "default/e1", "default/e2", "node2"):
        assert part in shown


KINDS = "pods,tablebindings,tableplacements,lookuptables,tierpools"


ORDERS = {
    "tables-first": ("lookuptable/tiny", "tierpool/memory", "tableplacement/tiny", "pod/e1", "pod/e2"),
    "pods-first": ("pod/e1", "pod/e2", "tableplacement/tiny", "tierpool/memory", "lookuptable/tiny"),
    "mixed": ("tableplacement/tiny", "pod/e1", "lookuptable/tiny", "pod/e2", "tierpool/memory"),
}


@pytest.mark.parametrize(
    ("order", "killed_first"),
    [
        pytest.param(each, killed, id=f"{name}-{'operator-killed-first' if killed else 'operator-alive'}",
                     marks=() if name == "tables-first" and killed else pytest.mark.full)
        for name, each in ORDERS.items() for killed in (False, True)
    ],
)  # fmt: skip
def test_deleting_everything_ends_within_a_minute(serving: System, order: tuple[str, ...], killed_first: bool) -> None:
    """Nothing is left in the cluster and, once an operator runs, nothing at tierd."""
    cluster = serving.cluster
    if killed_first:
        kill(serving.operator)
    start = time.monotonic()
    for each in order:
        cluster.kubectl("delete", each, "--wait=false")
    wait_for(
        "all objects to be gone", lambda: not cluster.kubectl("get", KINDS, "-o", "name").strip(), within_s=ENDS_S
    )  # fmt: skip
    gone_s = time.monotonic() - start
    if killed_first:
        serving.operator.start()
        start = time.monotonic()
    kinds = ("bindings", "replicas", "tables", "pools")
    wait_for(
        "tierd to be empty", lambda: not any(serving.items(kind) for kind in kinds),
        within_s=ENDS_S - (time.monotonic() - start),
    )  # fmt: skip
    print(f"objects gone after {gone_s:.1f} s, tierd empty {time.monotonic() - start:.1f} s")
