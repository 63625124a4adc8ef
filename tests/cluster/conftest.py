# SPDX-License-Identifier: Apache-2.0
"""One cluster for the session, started unless it is up, and ended if it was started here."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import system as systems
from harness import SCRIPT, Cluster, RefusedError


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A real Kubernetes of two nodes."""
    found = Cluster()
    try:
        found.kubectl("get", "--raw", "/readyz")
        was_up = True
    except RefusedError:
        was_up = False
        subprocess.run([str(SCRIPT), "up", "--nodes", "2"], check=True, timeout=300)
    yield found
    if not was_up:
        subprocess.run([str(SCRIPT), "down"], check=True, timeout=60)


@pytest.fixture(scope="session")
def crds(cluster: Cluster) -> Cluster:
    """The cluster with our definitions established."""
    cluster.kubectl("apply", "--server-side", "-f", str(Path(__file__).parents[2] / "operator/crds"))
    cluster.kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=slacktier")
    for namespace in ("serving", "tables"):
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    return cluster


@pytest.fixture(scope="session")
def system(crds: Cluster) -> Iterator[systems.System]:
    """Ray, tierd and the operator; sockets of memory nodes want a short path."""
    with tempfile.TemporaryDirectory(prefix="st-", dir="/tmp") as folder:
        started = systems.start(crds, Path(folder))
        yield started
        started.close()


@pytest.fixture
def clean(system: systems.System) -> Iterator[systems.System]:
    """Nothing of a test's is left for the next one."""
    yield system
    system.clear()
