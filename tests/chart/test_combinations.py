# SPDX-License-Identifier: Apache-2.0
"""Every combination of six toggles: it renders, carries what its toggles ask for, and no pod may more than it must."""

from __future__ import annotations

import functools

import pytest
from chart_rendering import COMBINATIONS, Object, Rendered, component_of, container, name_of, values_of


@functools.cache
def rendered(chosen: frozenset[str]) -> Rendered:
    return Rendered.of(values_of(chosen), kuberay="kuberay" in chosen)


combinations = pytest.mark.parametrize("chosen", COMBINATIONS, ids=name_of)


def test_all_sixty_four_are_looked_at() -> None:
    assert len(set(COMBINATIONS)) == 64


@combinations
def test_objects_are_named_labelled_and_in_the_release_s_namespace(chosen: frozenset[str]) -> None:
    seen = set()
    for each in rendered(chosen).objects:
        metadata = each["metadata"]
        assert each["apiVersion"]
        assert (each["kind"], metadata["name"]) not in seen
        seen.add((each["kind"], metadata["name"]))
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "slacktier"
        is_wide = each["kind"] in ("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition")
        assert ("namespace" in metadata) != is_wide


@combinations
def test_no_pod_is_root_privileged_on_the_host_s_network_or_writes_its_root(chosen: frozenset[str]) -> None:
    pods = dict(rendered(chosen).pods())
    assert {component_of(pod) for pod in pods.values()} >= {"operator", "head", "nvme", "memory", "test"}
    for where, pod in pods.items():
        spec = pod["spec"]
        assert not set(spec) & {"hostNetwork", "hostPID", "hostIPC"}, where
        # A Ray driver finds its node among the processes that it sees.
        assert ("shareProcessNamespace" in spec) == (component_of(pod) == "head"), where
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, where
        assert security["runAsUser"] == security["runAsGroup"] == 10001, where
        is_worker = component_of(pod) in ("nvme", "memory")
        expected = "Localhost" if is_worker and "open" in chosen else "RuntimeDefault"
        assert security["seccompProfile"]["type"] == expected, where
        for each in (*spec["containers"], *spec.get("initContainers", [])):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}
            }, where  # fmt: skip
            assert each["resources"]["limits"]["memory"], where
            assert each["resources"]["requests"]["cpu"], where


@combinations
def test_device_extras_are_asked_for_only_where_they_are_on(chosen: frozenset[str]) -> None:
    found = rendered(chosen)
    memory, nvme = found.pod("memory"), found.pod("nvme")
    limits = container(memory, "ray-worker")["resources"]["limits"]
    requests = container(memory, "ray-worker")["resources"]["requests"]
    assert (limits.get("rdma/hca"), requests.get("rdma/hca")) == ((1, 1) if "rdma" in chosen else (None, None))
    assert (limits.get("hugepages-2Mi") == "2Gi") == ("rdma" in chosen)
    assert (memory["metadata"].get("annotations", {}).get("k8s.v1.cni.cncf.io/networks") == "roce") == (
        "rdma" in chosen
    )
    assert ("supplementalGroups" in nvme["spec"]["securityContext"]) == ("blocks" in chosen)
    assert ("volumeDevices" in container(nvme, "ray-worker")) == ("blocks" in chosen)
    for where, pod in found.pods():
        host_paths = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume]
        wanted = ["/mnt/slacktier"] if component_of(pod) == "nvme" and "blocks" not in chosen else []
        assert host_paths == wanted, where


@combinations
def test_every_mount_has_its_volume_and_every_volume_its_use(chosen: frozenset[str]) -> None:
    found = rendered(chosen)
    claims = {each["metadata"]["name"] for each in found.all("StatefulSet") for each in _claims(each)}
    for where, pod in found.pods():
        mounted = set()
        for each in pod["spec"]["containers"]:
            mounts = [mount["name"] for mount in each.get("volumeMounts", [])]
            mounted |= {*mounts, *(device["name"] for device in each.get("volumeDevices", []))}
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert volumes <= mounted, where
        assert mounted - volumes <= claims, where


def _claims(stateful_set: Object) -> list[Object]:
    return list(stateful_set["spec"].get("volumeClaimTemplates", []))


@combinations
def test_selectors_find_their_pods(chosen: frozenset[str]) -> None:
    found = rendered(chosen)
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        for each in found.all(kind):
            wanted = each["spec"]["selector"]["matchLabels"].items()
            assert wanted <= each["spec"]["template"]["metadata"]["labels"].items()
    labels = [pod["metadata"]["labels"].items() for _, pod in found.pods()]
    for each in found.all("Service"):
        assert any(each["spec"]["selector"].items() <= have for have in labels), each["metadata"]["name"]
    for each in (*found.all("NetworkPolicy"), *found.all("PodDisruptionBudget")):
        selector = each["spec"].get("podSelector") or each["spec"]["selector"]
        assert any(selector["matchLabels"].items() <= have for have in labels), each["metadata"]["name"]


@combinations
def test_accounts_that_pods_name_exist_and_tokens_reach_only_who_needs_them(chosen: frozenset[str]) -> None:
    found = rendered(chosen)
    accounts = {each["metadata"]["name"] for each in found.all("ServiceAccount")}
    for where, pod in found.pods():
        assert pod["spec"]["serviceAccountName"] in accounts, where
        has_token = pod["spec"]["automountServiceAccountToken"]
        assert has_token == (component_of(pod) in ("operator", "uninstall")), where
    for each in found.all("ClusterRoleBinding"):
        assert {subject["name"] for subject in each["subjects"]} <= accounts
        assert found.one("ClusterRole", each["roleRef"]["name"])
    head = found.pod("head")
    assert "api-access" not in [mount["name"] for mount in container(head, "ray-head")["volumeMounts"]]
    assert "api-access" in [mount["name"] for mount in container(head, "tierd")["volumeMounts"]]


@combinations
def test_toggles_bring_what_they_are_for(chosen: frozenset[str]) -> None:
    found = rendered(chosen)
    kinds = {each["kind"] for each in found.objects}
    has_monitoring, is_open = "monitoring" in chosen, "open" in chosen
    assert ({"ServiceMonitor", "PodMonitor", "PrometheusRule", "ConfigMap"} <= kinds) == has_monitoring
    assert ("NetworkPolicy" in kinds, "PodDisruptionBudget" in kinds) == (not is_open, not is_open)
    assert len(found.all("CustomResourceDefinition")) == (0 if is_open else 4)
    assert ("Job" in kinds) == is_open
    assert ("RayCluster" in kinds) == ("kuberay" in chosen)
    stateful = {each["metadata"]["name"] for each in found.all("StatefulSet")}
    expected = set() if "kuberay" in chosen else {"slacktier-head", "slacktier-memory"}
    assert stateful == expected | ({"slacktier-nvme"} if "blocks" in chosen else set())
    assert ("DaemonSet" in kinds) == (not chosen & {"kuberay", "blocks"})
    url = {each["name"]: each.get("value") for each in container(found.pod("operator"), "operator")["env"]}
    scheme = "https" if "tls" in chosen else "http"
    assert url["SLACKTIER_TIERD_URL"] == f"{scheme}://slacktier-head.slacktier-system.svc:8700"
    assert ("SLACKTIER_CA_FILE" in url) == ("tls" in chosen)
    probe = container(found.pod("head"), "tierd")["livenessProbe"]["httpGet"]
    assert probe["scheme"] == scheme.upper()
