# SPDX-License-Identifier: Apache-2.0
"""A release's life, with pods that serve: uninstalled, installed anew from an older chart, upgraded, rolled back.

In order, each from where the last one ended. charts/ has the older one: that of the first commit whose chart installed,
packaged as 0.0.9 without the placement's field `suspend`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

from cluster_site import DISK_NODES, NAMESPACE, Site
from harness import wait_for
from page import sections
from test_first_token import json_lines
from under_load import Outcome, streams

OLDER: Final = Path(__file__).with_name("charts") / "slacktier-0.0.9.tgz"
URL: Final = f"http://small.{NAMESPACE}.svc.cluster.local:8000"
# Readers take shared locks only, so that what staging writes shows in a file's time and place.
REGION_FILES: Final = r"find /mnt/slacktier -type f -size +4k -printf '%p %i %T@ %s\n' | sort"
MINUTE_S: Final = 60.0


def regions(site: Site) -> list[str]:
    """Path, inode, time of the last write and size of every region on the nodes' disks."""
    return [f"{node} {line}" for node in DISK_NODES for line in site.on_node(node, REGION_FILES).splitlines()]


def has_suspend(site: Site) -> bool:
    crd = json.loads(site.cluster.kubectl("get", "crd", "tableplacements.slacktier.dev", "-o", "json"))
    (version,) = crd["spec"]["versions"]
    return "suspend" in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


def bound(site: Site) -> set[str]:
    return {each["metadata"]["name"] for each in site.cluster.items("tablebindings", "-n", NAMESPACE)}


def settle(site: Site) -> None:
    """Operator, tierd and placements are as the release wants them."""
    site.shell(
        f"kubectl -n {NAMESPACE} rollout status deployment/slacktier-operator --timeout=5m\n"
        f"kubectl -n {NAMESPACE} rollout status statefulset/slacktier-head --timeout=5m\n"
        f"kubectl -n {NAMESPACE} wait tableplacement/small --for=condition=Ready --timeout=5m"
    )


def assert_whole(outcome: Outcome) -> None:
    assert outcome.all_errors() == []
    assert min(outcome.completed.values()) > 0


def test_uninstalled_within_a_minute_and_the_regions_stay(installed: Site) -> None:
    before = regions(installed)
    assert before
    started = time.monotonic()
    installed.follow("Uninstall")
    took_s = time.monotonic() - started
    print(f"uninstall and the namespace's end, with serving pods: {took_s:.0f} s")
    assert took_s < MINUTE_S
    assert regions(installed) == before


def test_a_new_install_takes_the_regions_over_without_staging_a_byte(site: Site) -> None:
    before = regions(site)
    site.free_volume("checkpoints")
    site.shell(sections()["Install"].commands.replace("helm/slacktier ", f"{OLDER} "))
    answers = json_lines(site.follow("First token"))
    assert next(answer for answer in answers if "choices" in answer)
    report = next(answer for answer in answers if "rows_checked" in answer)
    assert report["rows_checked"] > 0
    assert report["mismatched_rows"] == 0
    assert regions(site) == before
    assert not has_suspend(site)


def test_bindings_and_streams_survive_an_upgrade_and_its_rollback(site: Site) -> None:
    regions_before, bound_before = regions(site), bound(site)
    assert bound_before
    with streams([URL]) as outcome:
        site.follow("Upgrade and roll back")
        settle(site)
    assert_whole(outcome)
    assert has_suspend(site)
    with streams([URL]) as outcome:
        site.shell(f"helm rollback slacktier -n {NAMESPACE} --wait --timeout 5m")
        settle(site)
    assert_whole(outcome)
    assert not has_suspend(site)
    assert (regions(site), bound(site)) == (regions_before, bound_before)
    site.follow("Upgrade and roll back")


def test_what_is_backed_up_can_be_applied_again(site: Site) -> None:
    said = site.follow("Back up and restore")
    assert "tableplacement.slacktier.dev/small" in said


def test_uninstalled_within_a_minute_with_the_operator_killed_first(site: Site) -> None:
    site.cluster.kubectl("-n", NAMESPACE, "scale", "deployment/slacktier-operator", "--replicas=0")
    wait_for(
        "the operator's end", lambda: not site.pods("app.kubernetes.io/component=operator"), within_s=40
    )  # fmt: skip
    started = time.monotonic()
    site.follow("Uninstall")
    took_s = time.monotonic() - started
    print(f"the same with the operator killed first: {took_s:.0f} s")
    assert took_s < MINUTE_S
