# SPDX-License-Identifier: Apache-2.0
"""`helm test` replays sessions from a Job in the cluster, with Locust's workers in pods of their own."""

from __future__ import annotations

from cluster_site import Site


def test_the_load_job_s_requests_complete_with_two_locust_workers(installed: Site) -> None:
    said = installed.follow("Load")
    assert "2 processes" in " ".join(said.split())
    (row,) = (
        line.split() for line in said.splitlines() if line.startswith("small") and "─" not in line and " - " in line
    )
    assert row[-2] == "16", "requests that completed"
    workers = installed.pods("app.kubernetes.io/component=loadtest")
    assert [pod["status"]["phase"] for pod in workers] == ["Succeeded"] * 3
