# SPDX-License-Identifier: Apache-2.0
"""One cluster of three nodes for all of the level, with our images, disks and a volume."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The cluster's harness is shared with its level.
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from cluster_site import CACHE, IMAGES, STATE, Site
from harness import ROOT, SCRIPT, Cluster, RefusedError


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Started unless it is up, and ended if it was started here."""
    cluster = Cluster()
    try:
        cluster.kubectl("get", "--raw", "/readyz")
        was_up = True
    except RefusedError:
        was_up = False
        images = [str(CACHE / f"images/slacktier-{name}.tar") for name in IMAGES]
        loaded = [word for image in images for word in ("--image", image)]
        subprocess.run([str(SCRIPT), "up", "--nodes", "3", "--node-memory", "6144", *loaded], check=True, timeout=400)
    found = Site(cluster, STATE)
    found.prepare()
    yield found
    for each in ("images.yaml", "backup.yaml"):
        (ROOT / each).unlink(missing_ok=True)
    if not was_up:
        subprocess.run([str(SCRIPT), "down"], check=True, timeout=60)


@pytest.fixture(scope="module")
def installed(site: Site) -> Site:
    """The page followed up to its first token, unless an earlier test has done so."""
    if not site.installed():
        site.free_volume("checkpoints")
        site.follow("Install")
        site.follow("First token")
    return site
