# SPDX-License-Identifier: Apache-2.0
"""An API server accepts what the chart renders, for every combination of its toggles, and the examples."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from api_server import CACHE, TOKEN, ApiServer, api_server
from chart_rendering import CHART, COMBINATIONS, NAMESPACE, ROOT, Rendered, name_of, values_of
from harness import RefusedError, wait_for

# Definitions of the Prometheus operator, which is not part of the test cluster.
FOREIGN = "monitoring.coreos.com/"
NAMESPACES = (NAMESPACE, "serving", "tables", "team-a", "team-b")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With our definitions and KubeRay's."""
    ray = CACHE / "kuberay/crd/bases/ray.io_rayclusters.yaml"
    if not ray.is_file():
        pytest.skip(f"needs KubeRay's definitions in {ray.parent}: tests/cluster/kubernetes/build.sh CACHE")
    with api_server(tmp_path_factory.mktemp("api")) as found:
        for namespace in NAMESPACES:
            found.kubectl("create", "namespace", namespace)
        found.kubectl("apply", "--server-side", "-f", str(ray), "-f", str(ROOT / "operator/crds"))
        kinds = "tablebindings,tableplacements,lookuptables,tierpools,rayclusters"
        wait_for("the definitions", lambda: found.kubectl("get", kinds, "-A", "-o", "name") == "", within_s=30)
        yield found


@pytest.mark.parametrize("chosen", COMBINATIONS, ids=name_of)
def test_the_server_accepts_every_combination(server: ApiServer, chosen: frozenset[str]) -> None:
    rendered = Rendered.of(values_of(chosen), kuberay="kuberay" in chosen).objects
    objects = [each for each in rendered if not each["apiVersion"].startswith(FOREIGN)]
    said = server.accept(yaml.safe_dump_all(objects))
    assert said.count("serverside-applied (server dry run)") == len(objects) > 10


def test_the_server_refuses_what_is_wrong(server: ApiServer) -> None:
    wrong = Rendered.of().one("Deployment", "slacktier-operator")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(RefusedError, match="livenesProbe"):
        server.accept(yaml.safe_dump(wrong))


@pytest.mark.parametrize("path", sorted((ROOT / "helm/examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_server_accepts_the_examples(server: ApiServer, path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text()))
    said = server.accept(path.read_text())
    assert said.count("serverside-applied (server dry run)") == len(documents)


def test_the_uninstall_job_deletes_every_resource_and_waits_for_tierd(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sample in ("emulated", "shared-copy"):
        server.kubectl("apply", "--server-side", "-f", str(ROOT / f"operator/samples/{sample}.yaml"))
    kinds = "tableplacements,lookuptables,tierpools"
    assert len(server.kubectl("get", kinds, "-A", "-o", "name").split()) == 6
    job = runpy.run_path(str(CHART / "files/delete_resources.py"))
    left, asked = [["a", "b"], ["b"], []], []

    def left_at_tierd(*_: Any) -> list[str]:
        asked.append(server.kubectl("get", kinds, "-A", "-o", "name").split())
        return left.pop(0)

    monkeypatch.setitem(job["main"].__globals__, "left_at_tierd", left_at_tierd)
    monkeypatch.setattr(job["time"], "sleep", lambda _: None)
    monkeypatch.setattr(kubernetes.config, "load_incluster_config", lambda: _log_in(server))
    assert job["main"]("http://tierd", "token", "") == 0
    assert asked == [[], [], []]


def _log_in(server: ApiServer) -> None:
    found = kubernetes.client.Configuration(host=f"https://127.0.0.1:{server.port}")
    found.ssl_ca_cert = str(server.ca_file)
    found.api_key = {"authorization": f"Bearer {TOKEN}"}
    kubernetes.client.Configuration.set_default(found)
