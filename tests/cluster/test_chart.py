# SPDX-License-Identifier: Apache-2.0
"""An API server accepts what the chart renders, for every combination of its toggles, and the examples."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from api_server import CACHE, ApiServer, api_server
from chart_rendering import COMBINATIONS, NAMESPACE, ROOT, Rendered, name_of, values_of
from harness import RefusedError, wait_for

# Definitions of the Prometheus operator, which is not part of the test cluster.
FOREIGN = "monitoring.coreos.com/"
NAMESPACES = (NAMESPACE, "serving", "tables")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With our definitions and KubeRay's."""
    ray = CACHE / "kuberay/crd/bases/ray.io_rayclusters.yaml"
    if not ray.is_file():
        pytest.skip(f"needs KubeRay's definitions in {ray.parent}: tests/cluster/kubernetes/build.sh --with-helm CACHE")
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
