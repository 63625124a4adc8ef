# SPDX-License-Identifier: Apache-2.0
"""The serving examples: pods that wait for their tables, what they are told, and that their names fit together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_rendering import ROOT, Object, Rendered, container

from slacktier.crd import RESOURCES
from slacktier.crd_model import GATE
from slacktier_cli.main import LazyGroup
from slacktier_engine.settings import load_settings
from slacktier_operator.store import placement_of

EXAMPLES = sorted((ROOT / "helm/examples").glob("*.yaml"))
SAMPLES = ROOT / "operator/samples"
TIERD = "http://slacktier-head.slacktier-system.svc:8700"


def documents(path: Path) -> list[Object]:
    return list(yaml.safe_load_all(path.read_text()))


def deployments() -> Iterator[tuple[str, Object, list[Object]]]:
    """(name, pod, all documents that are applied with it) of every serving Deployment."""
    for path in EXAMPLES:
        found = documents(path)
        for each in found:
            if each["kind"] == "Deployment":
                yield f"{path.stem}-{each['metadata']['name']}", each, found


SERVING = list(deployments())
serving = pytest.mark.parametrize(("deployment", "found"), [case[1:] for case in SERVING], ids=[c[0] for c in SERVING])


def test_all_examples_are_here() -> None:
    assert [path.stem for path in EXAMPLES] == ["emulated", "nvme-block", "prefill-decode", "sglang", "shared-copy"]
    assert len(SERVING) == 6


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_custom_resources_are_what_the_operator_takes(path: Path) -> None:
    models = {resource.kind: resource for resource in RESOURCES}
    for each in documents(path):
        if each["apiVersion"].startswith("slacktier.dev/"):
            models[each["kind"]].spec_model.model_validate(each["spec"])


@serving
def test_serving_pods_wait_for_their_tables_and_go_on_only_with_them(deployment: Object, found: list[Object]) -> None:
    template = deployment["spec"]["template"]
    assert template["spec"]["schedulingGates"] == [{"name": GATE}]
    own = deployment["metadata"]["namespace"]
    namespace, name = placement_of({"metadata": {"namespace": own, **template["metadata"]}})
    placed = [*found, *(each for path in SAMPLES.glob("*.yaml") for each in documents(path))]
    assert ("TablePlacement", name, namespace) in [
        (each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")) for each in placed
    ]
    (engine,) = template["spec"]["containers"]
    ready = engine["readinessProbe"]["httpGet"]
    assert (ready["path"], ready["port"]) == ("/readyz", "slacktier")
    assert {port["name"] for port in engine["ports"]} >= {"slacktier"}


@serving
def test_services_probes_and_resources_are_there(deployment: Object, found: list[Object]) -> None:
    template = deployment["spec"]["template"]
    where = [deployment["metadata"][key] for key in ("namespace", "name")]
    (service,) = (each for each in found if each["kind"] == "Service"
                  and [each["metadata"][key] for key in ("namespace", "name")] == where)  # fmt: skip
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (engine,) = template["spec"]["containers"]
    ports = {port["name"] for port in engine["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert engine[probe]["httpGet"]["port"] in ports
    for each in (engine, *template["spec"].get("initContainers", [])):
        assert {"cpu", "memory"} <= each["resources"]["requests"].keys()
        assert each["resources"]["limits"]["memory"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_no_pod_of_an_example_is_root_or_privileged(path: Path) -> None:
    for each in documents(path):
        spec = each.get("spec", {}).get("template", {}).get("spec")
        if spec is None:
            continue
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not set(spec) & {"hostNetwork", "hostPID", "hostIPC"}
        for one in (*spec["containers"], *spec.get("initContainers", [])):
            assert one["securityContext"]["allowPrivilegeEscalation"] is False
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@serving
def test_mounts_have_their_volumes(deployment: Object, found: list[Object]) -> None:
    spec = deployment["spec"]["template"]["spec"]
    mounted = {mount["name"] for each in (*spec["containers"], *spec.get("initContainers", []))
               for mount in each["volumeMounts"]}  # fmt: skip
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def _expanded(engine: Object, text: str) -> str:
    """As the kubelet puts environment variables in."""
    for each in engine["env"]:
        text = text.replace(f"$({each['name']})", "node-1" if each["name"] == "NODE_NAME" else "a")
    return text


def _tables(found: list[Object]) -> set[str]:
    """tierd's names of the tables of all LookupTables."""
    return {
        f"{each['metadata']['namespace']}.{each['metadata']['name']}.l{layer}"
        for each in found if each["kind"] == "LookupTable" for layer in each["spec"]["layers"]
    }  # fmt: skip


def test_the_plugin_takes_sglang_s_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKTIER_INSTANCE", "serving.a")
    declared = _tables(documents(SAMPLES / "memory-node.yaml"))
    looked_at = 0
    for name, deployment, _ in SERVING:
        if not name.startswith(("sglang", "prefill")):
            continue
        (engine,) = deployment["spec"]["template"]["spec"]["containers"]
        environment = {each["name"]: each.get("value", "") for each in engine["env"]}
        settings = load_settings(_expanded(engine, environment["SLACKTIER_CONFIG"]))
        assert settings.tierd is not None
        assert settings.tierd.url == TIERD
        assert settings.tierd.needs.node == "node-1"
        assert {layer.table for layer in settings.tierd.needs.layers} == declared
        assert f"--tp={settings.tierd.needs.ranks}" in engine["args"]
        assert "disaggregation" in str(engine["args"]) or any("--hicache-size=" in each for each in engine["args"])
        looked_at += 1
    assert looked_at == 3


def test_the_emulated_engine_takes_its_arguments() -> None:
    found = documents(ROOT / "helm/examples/emulated.yaml")
    (deployment,) = (each for each in found if each["kind"] == "Deployment")
    engine = container(deployment["spec"]["template"], "engine")
    parsed = (
        LazyGroup()
        .get_command(None, "serve")
        .make_context("serve", [_expanded(engine, each) for each in engine["args"]])
    )
    assert parsed.params["tierd"] == TIERD
    assert {each.partition("=")[2] for each in parsed.params["table"]} == _tables(found)
    assert parsed.params["node"] == "node-1"


def test_examples_name_the_chart_s_service_and_mounts() -> None:
    chart = Rendered.of({"workers": {"sources": [{"claimName": "checkpoints"}]}})
    (service,) = (each for each in chart.all("Service") if each["metadata"]["name"].endswith("-head"))
    port = next(each["port"] for each in service["spec"]["ports"] if each["name"] == "http")
    assert f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port}" == TIERD
    disk = next(
        mount for mount in container(chart.pod("nvme"), "ray-worker")["volumeMounts"] if mount["name"] == "disk"
    )
    looked_at = 0
    for _, deployment, _ in SERVING:
        (engine,) = deployment["spec"]["template"]["spec"]["containers"]
        for mount in engine["volumeMounts"]:
            if mount["name"] == "regions":
                assert (mount["mountPath"], mount["readOnly"]) == (disk["mountPath"], True)
                looked_at += 1
    assert looked_at == 4, "all but the shared copy's, which is in memory"


def test_the_block_volume_is_what_the_chart_asks_for() -> None:
    found = documents(ROOT / "helm/examples/nvme-block.yaml")
    (volume,) = (each["spec"] for each in found if each["kind"] == "PersistentVolume")
    (pool,) = (each["spec"] for each in found if each["kind"] == "TierPool")
    block = {"devicePath": pool["members"][0]["path"], "storageClassName": volume["storageClassName"], "size": "1Ti"}
    values: dict[str, Any] = {"workers": {"nvme": {"hostPath": "", "blockVolumes": [block]}}}
    (claim,) = Rendered.of(values).one("StatefulSet", "slacktier-nvme")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["volumeMode"] == volume["volumeMode"] == "Block"
    assert claim["spec"]["accessModes"] == volume["accessModes"]
    assert json.dumps(claim["spec"]["resources"]["requests"]) == json.dumps(volume["capacity"])
