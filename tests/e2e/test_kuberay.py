# SPDX-License-Identifier: Apache-2.0
"""The page up to its first token where KubeRay is there: Ray's pods are then a RayCluster's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cluster_site import CACHE, NAMESPACE, Site
from test_first_token import json_lines

pytestmark = pytest.mark.full


@pytest.fixture
def with_kuberay(site: Site) -> Iterator[Site]:
    """KubeRay's own operator and no release of ours; both are gone afterwards."""
    if not (CACHE / "images/kuberay-operator.tar").is_file():
        pytest.skip("needs KubeRay's operator: tests/cluster/kubernetes/build.sh --with-helm CACHE")
    if site.installed():
        site.follow("Uninstall")
    site.cluster.run("kuberay", timeout_s=180)
    yield site
    if site.installed():
        site.follow("Uninstall")
    site.cluster.kubectl("delete", "-k", str(CACHE / "kuberay/cluster"), "--ignore-not-found", timeout_s=120)


def test_the_page_s_commands_lead_to_a_checked_token_through_kuberay(with_kuberay: Site) -> None:
    with_kuberay.free_volume("checkpoints")
    started = time.monotonic()
    with_kuberay.follow("Install")
    answers = json_lines(with_kuberay.follow("First token"))
    print(f"from nothing to the first checked token, through KubeRay: {time.monotonic() - started:.0f} s")
    report = next(answer for answer in answers if "rows_checked" in answer)
    assert report["rows_checked"] > 0
    assert report["mismatched_rows"] == 0
    workers = with_kuberay.pods("ray.io/node-type=worker")
    assert workers
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in workers} == {"RayCluster"}
    assert with_kuberay.cluster.items("statefulsets,daemonsets", "-n", NAMESPACE) == []
