# SPDX-License-Identifier: Apache-2.0
"""What each part of the chart is told, against the programs that it tells."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from chart_rendering import CHART, ROOT, RefusedError, Rendered, component_of, container, helm, template

from slacktier.crd_model import GATE, PLACEMENT_LABEL
from slacktier_cli.main import LazyGroup
from slacktier_operator.settings import OperatorSettings


@pytest.fixture(scope="module")
def plain() -> Rendered:
    return Rendered.of()


@pytest.fixture(scope="module")
def kuberay() -> Rendered:
    return Rendered.of(kuberay=True)


def test_helm_lint_finds_nothing() -> None:
    said = helm("lint", "--strict", str(CHART))
    assert "[WARNING]" not in said
    assert "0 chart(s) failed" in said


def test_the_operator_is_one_at_most_also_during_an_upgrade(plain: Rendered) -> None:
    spec = plain.one("Deployment", "slacktier-operator")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert container(plain.pod("operator"), "operator")["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_operator_reads_its_settings_from_what_it_is_given(plain: Rendered) -> None:
    environment = {each["name"]: each["value"] for each in container(plain.pod("operator"), "operator")["env"]}
    settings = OperatorSettings.from_environment(environment)
    assert settings.tierd_url == "http://slacktier-head.slacktier-system.svc:8700"
    assert str(settings.token_file) == "/var/run/secrets/slacktier/token"
    source = (ROOT / "operator/slacktier_operator/settings.py").read_text()
    assert [name for name in environment if f'"{name}"' not in source] == []


def test_kopf_takes_the_operator_s_arguments(plain: Rendered) -> None:
    from kopf.cli import main as kopf

    command, given = (
        container(plain.pod("operator"), "operator")["command"],
        container(plain.pod("operator"), "operator"),
    )
    assert command[:2] == ["kopf", "run"]
    parsed = kopf.commands["run"].make_context("run", [*command[2:], *given["args"]])
    assert parsed.params["standalone"] is True
    assert parsed.params["modules"] == ("slacktier_operator.main",)


def test_tierd_takes_the_head_s_arguments(plain: Rendered) -> None:
    found = container(plain.pod("head"), "tierd")
    assert found["command"] == ["slacktier", "tierd"]
    parsed = LazyGroup().get_command(None, "tierd").make_context("tierd", list(found["args"]))
    assert parsed.params["decide"] == "operator"
    assert parsed.params["admin_account"] == ["slacktier-system:slacktier-operator"]
    assert parsed.params["reader_account"] == [
        "slacktier-system:slacktier-test",
        "slacktier-system:slacktier-uninstall",
    ]


@pytest.mark.parametrize("component", ["head", "nvme", "memory"])
def test_ray_takes_its_nodes_arguments(plain: Rendered, component: str) -> None:
    from ray.scripts.scripts import start

    found = container(plain.pod(component), "ray-head" if component == "head" else "ray-worker")
    first, *arguments = found["args"]
    assert first == "start"
    parsed = start.make_context("start", arguments)
    ports = [value for name, value in parsed.params.items() if name.endswith("_port") and value is not None]
    assert all(int(port) < 32768 for port in ports), "memory nodes' ports begin there"
    assert parsed.params["head"] == (component == "head")


def test_ray_s_nodes_have_the_names_of_kubernetes_nodes_one_each(plain: Rendered) -> None:
    for component in ("nvme", "memory"):
        pod = plain.pod(component)
        worker = container(pod, "ray-worker")
        assert "--node-name=$(NODE_NAME)" in worker["args"]
        (resources,) = (each for each in worker["args"] if each.startswith("--resources="))
        wanted = {"nvme": 8, "memory_node": 64} if component == "nvme" else {"memory_node": 64}
        assert yaml.safe_load(resources.partition("=")[2]) == wanted
        (rule,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_an_affinity_of_the_user_s_is_kept_beside_ours() -> None:
    mine = {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}
    rules = {"requiredDuringSchedulingIgnoredDuringExecution": [mine]}
    found = Rendered.of({"workers": {"memory": {"affinity": {"podAntiAffinity": rules}}}}).pod("memory")
    kept = found["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [rule["topologyKey"] for rule in kept] == ["rack", "kubernetes.io/hostname"]


def test_memory_pods_leave_nodes_with_disks_to_the_pods_that_stage_there() -> None:
    def terms(values: dict[str, Any]) -> list[Any]:
        affinity = Rendered.of({"workers": values}).pod("memory")["spec"]["affinity"]
        rule = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        return list(rule.get("nodeSelectorTerms", []))

    expected = {"key": "slacktier.dev/nvme", "operator": "NotIn", "values": ["true"]}
    assert terms({}) == [{"matchExpressions": [expected]}]
    assert terms({"nvme": {"enabled": False}}) == []
    mine = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"mine": 1}]}}}
    assert terms({"memory": {"affinity": mine}}) == [{"mine": 1}]


def test_pods_are_the_same_with_kuberay_and_without(plain: Rendered, kuberay: Rendered) -> None:
    for component in ("head", "nvme", "memory"):
        ours, theirs = plain.pod(component), kuberay.pod(component)
        assert ours["spec"] == theirs["spec"]
        # KubeRay would put its own command before ours otherwise.
        assert theirs["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
        assert theirs["spec"]["containers"][0]["name"].startswith("ray-")


@pytest.mark.parametrize(
    "extras", [{}, {"rdma": {"enabled": True}, "hugepages": {"size2Mi": "2Gi"}}], ids=["plain", "rdma"]
)
def test_requests_and_limits_are_the_values(extras: dict[str, Any]) -> None:
    resources = {"requests": {"cpu": 2, "memory": "10Gi"}, "limits": {"memory": "300Gi"}}
    devices = {"rdma/hca": 1, "hugepages-2Mi": "2Gi"} if extras else {}
    for _ in range(4):  # a template that shares a map between both differs from run to run
        pod = Rendered.of({"workers": {"memory": {"resources": resources, **extras}}}).pod("memory")
        found = container(pod, "ray-worker")["resources"]
        assert found["requests"].items() >= {**resources["requests"], **devices}.items()
        assert found["limits"] == {**resources["limits"], **devices}


def test_ray_mode_wins_over_what_the_cluster_has() -> None:
    assert not Rendered.of({"ray": {"mode": "plain"}}, kuberay=True).all("RayCluster")
    assert Rendered.of({"ray": {"mode": "kuberay"}}).all("RayCluster")


def test_sources_are_mounted_read_only_where_the_operator_says(plain: Rendered) -> None:
    found = Rendered.of({"workers": {"sources": [{"claimName": "checkpoints"}]}})
    sources = {each["name"]: each.get("value") for each in container(found.pod("operator"), "operator")["env"]}
    for component in ("nvme", "memory"):
        (mount,) = (each for each in container(found.pod(component), "ray-worker")["volumeMounts"]
                    if each["name"] == "source-checkpoints")  # fmt: skip
        assert mount["readOnly"] is True
        assert mount["mountPath"] == f"{sources['SLACKTIER_SOURCES_PATH']}/checkpoints"


def _peers(rules: list[dict[str, Any]], port: int) -> list[dict[str, Any]]:
    """Peers that a policy's rules let in at a port."""
    found = []
    for rule in rules:
        ports = rule.get("ports")
        if ports is None or any(each["port"] <= port <= each.get("endPort", each["port"]) for each in ports):
            found += rule["from"]
    return found


@pytest.mark.parametrize("component", ["head", "nvme", "memory"])
def test_only_ray_s_nodes_reach_ray_and_serving_pods_reach_rows_and_the_api(plain: Rendered, component: str) -> None:
    rules = plain.one("NetworkPolicy", f"slacktier-{component}")["spec"]["ingress"]
    for port in (6379, 6380, 6381, 6382, 6383, 6384, 6385, 10002, 10999):
        (peer,) = _peers(rules, port)
        (expression,) = peer["podSelector"]["matchExpressions"]
        assert expression["values"] == ["head", "nvme", "memory"]
        assert "namespaceSelector" not in peer
    open_port = 8700 if component == "head" else 40_000
    expression = {"key": PLACEMENT_LABEL, "operator": "Exists"}
    serving = [
        peer for peer in _peers(rules, open_port)
        if expression in peer.get("podSelector", {}).get("matchExpressions", [])
    ]  # fmt: skip
    assert len(serving) == 1
    assert serving[0]["namespaceSelector"] == {}


def test_the_operator_is_reached_by_nobody(plain: Rendered) -> None:
    policy = plain.one("NetworkPolicy", "slacktier-operator")["spec"]
    assert policy["ingress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


def test_notes_say_what_to_do_next() -> None:
    said = helm("install", "slacktier", str(CHART), "--dry-run=client", "--namespace", "slacktier-system")
    notes = said.partition("NOTES:")[2]
    assert PLACEMENT_LABEL in notes
    assert GATE in notes
    assert "helm test slacktier -n slacktier-system" in notes
    assert "kubectl label node NODE slacktier.dev/nvme=true" in notes
    for path in re.findall(r"\S+/samples/\S+\.yaml", notes):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("release", ["a", "x" * 53, "my-slacktier"])
def test_names_fit_for_any_release(release: str) -> None:
    names = [each["metadata"]["name"] for each in Rendered.of(release=release).objects]
    assert max(map(len, names)) <= 63
    assert not [name for name in names if name.endswith("-")]


def test_two_releases_share_no_name_but_the_definitions() -> None:
    first, second = ({(each["kind"], each["metadata"]["name"]) for each in Rendered.of(release=name).objects}
                     for name in ("one", "two"))  # fmt: skip
    assert {kind for kind, _ in first & second} == {"CustomResourceDefinition"}


REFUSED = [
    ({"operators": {}}, "operators"),
    ({"operator": {"replicas": 2}}, "replicas"),
    ({"operator": {"image": {"repo": "x"}}}, "repo"),
    ({"operator": {"image": {"pullPolicy": "Sometimes"}}}, "pullPolicy"),
    ({"operator": {"logFormat": "xml"}}, "logFormat"),
    ({"operator": {"serviceAccount": {"creates": True}}}, "creates"),
    ({"tierd": {"service": {"port": 0}}}, "port"),
    ({"tierd": {"persistent": {}}}, "persistent"),
    ({"tierd": {"readerAccounts": ["grafana"]}}, "readerAccounts"),
    ({"ray": {"mode": "Kuberay"}}, "mode"),
    ({"ray": {"version": "latest"}}, "version"),
    ({"workers": {"nvmes": {}}}, "nvmes"),
    ({"workers": {"nvme": {"hostpath": "/mnt"}}}, "hostpath"),
    ({"workers": {"nvme": {"hostPath": "mnt"}}}, "hostPath"),
    ({"workers": {"nvme": {"blockVolumes": [{"devicePath": "/dev/b"}]}}}, "blockVolumes"),
    ({"workers": {"memory": {"rdma": {"enable": True}}}}, "enable"),
    ({"workers": {"memory": {"resources": {"limit": {}}}}}, "limit"),
    ({"workers": {"memory": {"resources": {"limits": {"memory": "4GB"}}}}}, "memory"),
    ({"workers": {"sources": [{"claim": "x"}]}}, "sources"),
    ({"security": {"runAsUser": 0}}, "runAsUser"),
    ({"security": {"seccompType": "Unconfined"}}, "seccompType"),
    ({"networkPolicy": {"enabled": "yes"}}, "enabled"),
    ({"metrics": {"serviceMonitor": {"isEnabled": True}}}, "isEnabled"),
    ({"uninstall": {"deleteResource": True}}, "deleteResource"),
]


@pytest.mark.parametrize(("values", "named"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_a_typo_in_the_values_is_refused_by_its_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(RefusedError, match=rf"don't meet the specifications[\s\S]*{named}"):
        template(values)


def test_every_component_has_a_name_of_its_own(plain: Rendered) -> None:
    components = [component_of(pod) for _, pod in plain.pods()]
    assert sorted(components) == ["head", "memory", "nvme", "operator", "test"]
