# SPDX-License-Identifier: Apache-2.0
"""The chart's files: generated ones are current, alerts and dashboard name metrics that exist, `helm test` can fail."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from chart_rendering import CHART, ROOT, Rendered

from slacktier import metrics
from slacktier.metrics import Metric, MetricKind

TOKEN = "token-of-the-test"  # noqa: S105


def load(path: Path) -> ModuleType:
    """A program that is no package's module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load(ROOT / "helm/generate.py")


def test_generated_files_are_current() -> None:
    stale = [str(path) for path, text in generate.files().items() if not path.is_file() or path.read_text() != text]
    assert stale == [], "run `make generate`"
    made = {path for path in generate.files() if path.parent.name == "crds"}
    assert set((CHART / "files/crds").iterdir()) == made


def test_a_value_without_a_description_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"line 4: a\.c has no line"):
        generate.value_rows("a:\n  # -- said\n  b: 1\n  c: 2\n")


def test_the_role_is_the_one_that_the_cluster_s_tests_use() -> None:
    documents = yaml.safe_load_all((ROOT / "operator/deploy/rbac.yaml").read_text())
    (tested,) = (each["rules"] for each in documents if each["kind"] == "ClusterRole")
    assert Rendered.of().one("ClusterRole", "slacktier-operator")["rules"] == tested


def test_definitions_are_the_operator_s_and_stay_on_uninstall() -> None:
    found = {each["metadata"]["name"]: each for each in Rendered.of().all("CustomResourceDefinition")}
    for path in (ROOT / "operator/crds").glob("*.yaml"):
        ours = yaml.safe_load(path.read_text())
        chart = found.pop(ours["metadata"]["name"])
        assert chart["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert chart == ours
    assert found == {}


def _paths(values: Any, prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{key}.")


def _schema_paths(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> Iterator[str]:
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for key, inner in schema.get("properties", {}).items():
        yield f"{prefix}{key}"
        yield from _schema_paths(inner, definitions, f"{prefix}{key}.")


def test_the_schema_has_the_values_and_no_others() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = set(_schema_paths(schema, schema["$defs"])) - {"global"}
    free = ("labels", "nodeSelector", "commonLabels", "annotations", "servingNamespaceSelector")
    set_here = {
        path for path in _paths(yaml.safe_load((CHART / "values.yaml").read_text()))
        if not any(f"{name}." in path for name in free) and not re.search(r"resources\.\w+|Resources\.\w+", path)
    }  # fmt: skip
    optional = {path for path in known if re.search(r"[rR]esources\.(requests|limits)$", path)}
    assert known - optional == set_here


def test_every_object_of_the_schema_refuses_other_names() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def open_objects(node: Any, where: str) -> Iterator[str]:
        if isinstance(node, dict):
            if "properties" in node and node.get("additionalProperties") is not False:
                yield where
            for key, inner in node.items():
                yield from open_objects(inner, f"{where}/{key}")

    assert list(open_objects(schema, "")) == []


def _samples() -> set[str]:
    """Names of all samples that Prometheus would have."""
    found = set()
    for each in vars(metrics).values():
        if isinstance(each, Metric):
            suffixes = ("_bucket", "_sum", "_count") if each.kind is MetricKind.HISTOGRAM else ("",)
            found |= {each.name + suffix for suffix in suffixes}
    return found


def _labels() -> set[str]:
    own = {label for each in vars(metrics).values() if isinstance(each, Metric) for label in each.labels}
    return own | {"pod", "le"}  # Prometheus' own


def _named(expressions: list[str]) -> set[str]:
    return {name for each in expressions for name in re.findall(r"slacktier_\w+", each)}


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_alerts_name_metrics_and_labels_that_exist() -> None:
    rules = _rules()
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 10
    assert _named([rule["expr"] for rule in rules]) - _samples() == set()
    for rule in rules:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        said = " ".join(rule["annotations"].values())
        assert set(re.findall(r"\$labels\.(\w+)", said)) <= _labels(), rule["alert"]


def test_the_dashboard_s_panels_name_metrics_that_exist_and_do_not_overlap() -> None:
    dashboard = json.loads((CHART / "files/dashboard.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(panels) >= 10
    assert _named(expressions) - _samples() == set()
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    grids = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [(grid["x"] + x, grid["y"] + y) for grid in grids for x in range(grid["w"]) for y in range(grid["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_rules_and_dashboard_arrive_whole() -> None:
    on = {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    found = Rendered.of({"metrics": on})
    rule = found.one("PrometheusRule", "slacktier")
    assert rule["spec"] == yaml.safe_load((CHART / "files/alerts.yaml").read_text())
    config = found.one("ConfigMap", "slacktier-dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(config["data"]["slacktier.json"]) == json.loads((CHART / "files/dashboard.json").read_text())


def test_the_seccomp_profile_allows_io_uring_and_refuses_what_nobody_calls() -> None:
    profile = json.loads((CHART / "files/seccomp-io-uring.json").read_text())
    refused = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    assert refused.isdisjoint({"io_uring_setup", "io_uring_enter", "io_uring_register"})
    assert refused >= {"mount", "ptrace", "bpf", "unshare", "setns", "kexec_load", "init_module"}


class _Tierd(http.server.BaseHTTPRequestHandler):
    """Answers as the head does; ready says whether Ray's nodes answer."""

    ready = True

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, {"error": "nobody's token"})
        elif self.path == "/readyz":
            self._answer(200 if self.ready else 503, {"ready": self.ready, "message": "" if self.ready else "no Ray"})
        else:
            self._answer(200, {"items": [{"name": "nvme"}]})

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""


@pytest.fixture
def tierd() -> Iterator[tuple[str, type[_Tierd]]]:
    handler = type("Handler", (_Tierd,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", handler
        server.shutdown()
        thread.join()


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return str(path)


helm_test = load(CHART / "files/helm_test.py")


def test_helm_s_test_passes_where_tierd_is_ready(
    tierd: tuple[str, Any], token_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert helm_test.main(tierd[0], token_file, "") == 0
    assert "pools: 1" in capsys.readouterr().out


def test_helm_s_test_fails_where_ray_does_not_answer(
    tierd: tuple[str, Any], token_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tierd[1].ready = False
    assert helm_test.main(tierd[0], token_file, "") == 1
    assert "503" in capsys.readouterr().err


def test_helm_s_test_fails_where_its_account_is_nobody(
    tierd: tuple[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").write_text("other")
    assert helm_test.main(tierd[0], str(tmp_path / "other"), "") == 1
    assert "401" in capsys.readouterr().err


def test_helm_s_test_fails_where_tierd_is_down(token_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert helm_test.main("http://127.0.0.1:9", token_file, "") == 1
    assert "no answer" in capsys.readouterr().err


def test_what_the_pods_run_is_the_file_that_is_tested() -> None:
    found = Rendered.of({"uninstall": {"deleteResources": True}})
    for component, name in (("test", "helm_test.py"), ("uninstall", "delete_resources.py")):
        (only,) = found.pod(component)["spec"]["containers"]
        assert only["args"][0].strip() == (CHART / "files" / name).read_text().strip()
        assert only["args"][1:] == ["http://slacktier-head.slacktier-system.svc:8700",
                                    "/var/run/secrets/slacktier/token", ""]  # fmt: skip
