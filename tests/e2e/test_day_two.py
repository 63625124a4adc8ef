# SPDX-License-Identifier: Apache-2.0
"""The day-two page's numbers, and `helm test` where tierd is down."""

from __future__ import annotations

import json
import time

import pytest
from cluster_site import DISK_NODES, NAMESPACE, Site
from harness import wait_for

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

GIB_ROWS = 2_030_000  # of 272 B in two layers: half a GiB each
MEMORY = "cat /sys/fs/cgroup/memory/memory.stat 2>/dev/null || cat /sys/fs/cgroup/memory.stat"
TABLE = {
    "apiVersion": "slacktier.dev/v1alpha1", "kind": "LookupTable", "metadata": {"name": "gib", "namespace": NAMESPACE},
    "spec": {
        "source": {"persistentVolumeClaim": {"claimName": "checkpoints", "path": "gib"}}, "family": "v41",
        "layers": [1, 14],
    },
}  # fmt: skip


def test_memory_of_each_pod(installed: Site) -> None:
    """What the kernel counts as theirs and cannot drop: anonymous memory and shared memory, without the page cache."""
    for pod in installed.pods("app.kubernetes.io/instance=slacktier"):
        name = pod["metadata"]["name"]
        for container in (each["name"] for each in pod["spec"]["containers"]):
            said = installed.cluster.kubectl("-n", NAMESPACE, "exec", name, "-c", container, "--", "sh", "-c", MEMORY)
            found = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
            anonymous = int(found.get("total_rss") or found["anon"])
            shared = int(found.get("total_shmem") or found.get("shmem", 0))
            print(f"memory of {name}, {container}: {(anonymous + shared) >> 20} MiB")
            assert anonymous > 0


def test_helm_test_fails_where_tierd_is_down(installed: Site) -> None:
    scale = f"kubectl -n {NAMESPACE} scale statefulset/slacktier-head --replicas"
    installed.shell(f"{scale}=0; kubectl -n {NAMESPACE} wait pod/slacktier-head-0 --for=delete --timeout=60s")
    try:
        said = installed.shell(f"! helm test slacktier -n {NAMESPACE} --timeout 2m 2>&1")
        assert "slacktier-test" in said
    finally:
        installed.shell(f"{scale}=1; kubectl -n {NAMESPACE} rollout status statefulset/slacktier-head --timeout=3m")
    installed.shell(f"kubectl -n {NAMESPACE} wait tableplacement/small --for=condition=Ready --timeout=3m")
    installed.shell(f"helm test slacktier -n {NAMESPACE} --timeout 2m")


def test_time_to_stage_a_gib(installed: Site) -> None:
    """From a checkpoint on a claim to complete and verified copies on both disk nodes at once."""
    checkpoint = installed.folder / "checkpoints/gib"
    installed.shell(f"test -e {checkpoint} || slacktier make-checkpoint {checkpoint} --rows {GIB_ROWS} >/dev/null")
    installed.shell(f"chown -R 10001:10001 {checkpoint}")
    small = installed.cluster.get("tableplacement", "small", NAMESPACE)
    placement = {
        "apiVersion": small["apiVersion"], "kind": small["kind"], "metadata": {"name": "gib", "namespace": NAMESPACE},
        "spec": {**small["spec"], "table": "gib"},
    }  # fmt: skip
    started = time.monotonic()
    installed.cluster.apply(TABLE, placement)
    wait_for("both copies", lambda: _staged(installed) == len(DISK_NODES) * len(TABLE["spec"]["layers"]), within_s=300)
    took_s = time.monotonic() - started
    sizes = [each["regionBytes"] for each in installed.cluster.get("lookuptable", "gib", NAMESPACE)["status"]["layers"]]
    print(f"{sum(sizes) / (1 << 30):.2f} GiB staged on {len(DISK_NODES)} nodes in {took_s:.0f} s")
    installed.cluster.kubectl("-n", NAMESPACE, "delete", "tableplacement/gib", "lookuptable/gib")


def _staged(site: Site) -> int:
    found = [each["status"] for each in site.api("/v1/replicas")["items"] if ".gib.l" in each["name"]]
    return sum(each["state"] == "complete" for each in found)


def test_time_to_the_first_token_after_a_power_cut(installed: Site) -> None:
    """The node of a serving pod, and of tierd's head if it is there, goes and comes back."""
    node = installed.pods("app=small")[0]["spec"]["nodeName"]
    installed.cluster.run("stop", node)
    time.sleep(5)
    started = time.monotonic()
    installed.cluster.run("start", node, timeout_s=120)
    url = f"http://small.{NAMESPACE}.svc.cluster.local:8000/v1/completions"
    body = json.dumps({"prompt": "def main():", "max_tokens": 4})
    answer = wait_for("a token", lambda: _answer(installed, url, body), within_s=240)
    print(f"{node} was cut off and came back: first token {time.monotonic() - started:.0f} s after its start")
    assert json.loads(answer)["usage"]["completion_tokens"] == 4


def _answer(site: Site, url: str, body: str) -> str:
    return site.cluster.run("exec", "curl", "-sf", "--max-time", "5", "-d", body, url)
