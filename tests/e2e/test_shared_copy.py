# SPDX-License-Identifier: Apache-2.0
"""Serving pods of two namespaces read one copy in another node's memory; what its death costs them."""

from __future__ import annotations

import json
import time

import pytest
from cluster_site import NAMESPACE, Site
from harness import wait_for
from under_load import streams

TEAMS = ("team-a", "team-b")
URLS = [f"http://shared.{team}.svc.cluster.local:8000" for team in TEAMS]


@pytest.fixture(scope="module")
def shared(installed: Site) -> Site:
    installed.follow("Share a copy")
    return installed


def _complete(site: Site) -> set[str]:
    """The nodes that have a whole copy of layer 14."""
    found = [each["status"] for each in site.api("/v1/replicas")["items"] if ".shared.l14." in each["name"]]
    return {each["members"][0] for each in found if each["members"] and each["state"] == "complete"}


def _kill_worker(site: Site, node: str) -> None:
    """As the kernel would: every process of the node's Ray pod at once."""
    (pod,) = (
        each["metadata"]["name"]
        for each in site.pods("slacktier.dev/ray-worker=true")
        if each["spec"]["nodeName"] == node
    )
    site.cluster.kubectl("-n", NAMESPACE, "delete", "pod", pod, "--grace-period=0", "--force")


def _assert_rows_are_right(site: Site) -> None:
    for url in URLS:
        report = json.loads(site.get(f"{url}/slacktier/report"))
        assert report["mismatched_rows"] == 0
        assert report["rows_checked"] > 0


def test_two_namespaces_on_two_nodes_read_one_copy(shared: Site) -> None:
    pods = [pod for team in TEAMS for pod in shared.pods("app=shared", team)]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    with streams(URLS) as outcome:
        time.sleep(3)
    assert outcome.all_errors() == []
    assert min(outcome.completed.values()) > 0
    _assert_rows_are_right(shared)


def test_with_a_second_copy_no_stream_breaks_whichever_memory_node_dies(shared: Site) -> None:
    nodes = sorted(_complete(shared))
    assert len(nodes) == 2
    for node in nodes:
        with streams(URLS) as outcome:
            _kill_worker(shared, node)
            wait_for("the copy to be missed", lambda gone=node: gone not in _complete(shared), within_s=60)
            started = time.monotonic()
            wait_for("the copy to be back", lambda: len(_complete(shared)) == 2, within_s=90)
            print(f"{node}: the copy was back {time.monotonic() - started:.0f} s after it was missed")
            time.sleep(2)
        assert outcome.all_errors() == []
        assert min(outcome.completed.values()) > 0
    _assert_rows_are_right(shared)


def test_a_lone_copy_s_death_ends_in_a_clear_error_and_serving_comes_back_by_itself(shared: Site) -> None:
    patch = json.dumps({"spec": {"replicas": 1, "stabilizationWindowSeconds": 0}})
    shared.cluster.kubectl("-n", NAMESPACE, "patch", "tableplacement", "shared", "--type=merge", "-p", patch)
    wait_for("one copy to be left", lambda: len(_complete(shared)) == 1, within_s=60)
    (node,) = _complete(shared)
    with streams(URLS) as outcome:
        killed_s = time.monotonic() - outcome.started_s
        _kill_worker(shared, node)
        started = time.monotonic()
        wait_for("the copy to be missed", lambda: node not in _complete(shared), within_s=60)
        wait_for("a copy to be there again", lambda: _complete(shared), within_s=90)
        wait_for("readiness to come back", lambda: _all_ready(shared), within_s=120)
        print(f"lone copy: serving again {time.monotonic() - started:.0f} s after the kill")
        time.sleep(3)
    for url in URLS:
        told_s, message = outcome.errors[url][0]
        print(f"lone copy: first error {told_s - killed_s:.1f} s after the kill: {message}")
        assert told_s - killed_s < 15
        assert "layer" in message
        assert "restarting" not in message
    _assert_rows_are_right(shared)


def _all_ready(site: Site) -> bool:
    return all(json.loads(site.get(f"{url}/readyz"))["ready"] for url in URLS)
