# SPDX-License-Identifier: Apache-2.0
"""A real SGLang in a serving pod, as helm/examples/sglang.yaml has it: gated, bound, ready by the plugin, right tokens.

The pod's SGLang is the environment of the level `engine`, on a CPU, which comes in from the node's disk. Its answers
must be those of a stock server with a table of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from cluster_site import DISK_NODES, NAMESPACE, Site
from harness import ROOT, wait_for

ENGINE: Final = ROOT / "tests/engine"
sys.path[:0] = [str(ENGINE), str(ROOT / "tests")]

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

NAME: Final = "engram"
PROMPTS: Final = 12
EXAMPLE: Final = ROOT / "helm/examples/sglang.yaml"
CACHE_ROWS: Final = 512
STEP_MS: Final = 20
SLO_PERCENT: Final = 100
MISSES: Final = 24
WINDOW_MS: Final = 5


def resources() -> list[dict[str, Any]]:
    """The table, a pool of the nodes' own disks, the placement."""
    from material import LAYERS

    misses = [{"cacheRows": 0, "pages": MISSES}]
    layers = [{"layerId": layer, "windowMs": WINDOW_MS, "misses": misses} for layer in LAYERS["engram"]]
    meta = {"name": NAME, "namespace": NAMESPACE}
    of = {"apiVersion": "slacktier.dev/v1alpha1"}
    return [
        of | {
            "kind": "LookupTable", "metadata": meta,
            "spec": {
                "source": {"persistentVolumeClaim": {"claimName": "checkpoints", "path": NAME}}, "family": "v41",
                "layers": list(LAYERS["engram"]),
            },
        },
        of | {
            "kind": "TierPool", "metadata": {"name": "disk"},
            "spec": {
                "tier": "nvme", "nodes": {"matchLabels": {"slacktier.dev/nvme": "true"}, "path": "/mnt/slacktier"},
                "read": {"aUs": 300, "bUs": 3},
            },
        },
        of | {
            "kind": "TablePlacement", "metadata": meta,
            "spec": {
                "table": NAME, "pools": ["disk"], "ranks": 1, "stepMs": STEP_MS, "sloPercent": SLO_PERCENT,
                "cacheRowsPerRank": CACHE_ROWS, "layers": layers,
            },
        },
    ]  # fmt: skip


def serving_objects(image: str) -> list[dict[str, Any]]:
    """The example's Deployment and Service, with SGLang on a CPU from the node's disk instead of its own image."""
    from engine_process import HERE as STAND_INS
    from engine_process import RELEASES, engine_env
    from material import LAYERS
    from servers import _ENGRAM_VARIABLES, _FLAGS

    deployment, service = yaml.safe_load_all(EXAMPLE.read_text().replace("deepseek-v41", NAME))
    for each in (deployment, service):
        each["metadata"]["namespace"] = NAMESPACE
    pod = deployment["spec"]["template"]["spec"]
    (init,), (container,) = pod["initContainers"], pod["containers"]
    init["image"] = container["image"] = image
    folders = {
        "torch": engine_env() / "torch", "packages": engine_env() / "packages", "models": ENGINE / "models",
        "release": engine_env() / RELEASES[-1].replace("==", "-"), "stand-ins": STAND_INS / "stand_ins",
    }  # fmt: skip
    path = ["/plugin", *(f"/engine/{name}" for name in ("models", "stand-ins", "release", "torch", "packages"))]
    container["args"] = ["--model-path=/sources/engram", "--host=0.0.0.0", "--port=30000", *_FLAGS]
    settings = {
        "check": {"rate": 1.0},
        "tierd": {
            "url": f"http://slacktier-head.{NAMESPACE}.svc:8700", "token_file": "/var/run/secrets/slacktier/token",
            "needs": {
                "node": "$(NODE_NAME)", "step_ms": STEP_MS, "ranks": 1, "slo_pct": SLO_PERCENT,
                "cache_rows": CACHE_ROWS,
                "layers": [
                    {
                        "layer_id": layer, "table": f"{NAMESPACE}.{NAME}.l{layer}", "window_ms": WINDOW_MS,
                        "misses": [{"cache_rows": 0, "pages": MISSES}],
                    }
                    for layer in LAYERS["engram"]
                ],
            },
        },
    }  # fmt: skip
    variables = {
        "PYTHONPATH": ":".join(path), "SLACKTIER_CONFIG": json.dumps(settings), "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", **_ENGRAM_VARIABLES,
    }  # fmt: skip
    container["env"] = [each for each in container["env"] if each["name"] not in variables]
    container["env"] += [{"name": name, "value": value} for name, value in variables.items()]
    container["resources"] = {"requests": {"cpu": "100m", "memory": "2Gi"}, "limits": {"memory": "5Gi"}}
    container["startupProbe"]["periodSeconds"] = 2
    container["volumeMounts"] = [
        {**each, "mountPath": "/sources"} if each["name"] == "models" else each for each in container["volumeMounts"]
    ]
    for name, folder in folders.items():
        pod["volumes"].append({"name": f"engine-{name}", "hostPath": {"path": str(folder), "type": "Directory"}})
        container["volumeMounts"].append({"name": f"engine-{name}", "mountPath": f"/engine/{name}", "readOnly": True})
    return [deployment, service]


@pytest.fixture
def checkpoint(site: Site) -> Path:
    from material import engram_checkpoint

    source = engram_checkpoint()
    target = site.folder / "checkpoints" / NAME
    if not target.exists():
        shutil.copytree(source, target)
        for path in (target, *target.rglob("*")):
            os.chown(path, 10001, 10001)
    return source


def test_sglang_in_a_pod_answers_as_a_server_with_its_own_table(
    installed: Site, checkpoint: Path, tmp_path: Path
) -> None:
    import workload
    from engine_process import RELEASES
    from servers import ServerSpec, serving

    asked = workload.prompts(PROMPTS, seed=5)
    with serving(ServerSpec(RELEASES[-1], "engram", checkpoint), tmp_path / "stock.log") as stock:
        expected = [workload.ask(stock, prompt).tokens for prompt in asked]
    started = time.monotonic()
    installed.cluster.apply(*resources(), *serving_objects("localhost/slacktier-emulated:dev"))
    installed.shell(
        f"kubectl -n {NAMESPACE} wait tableplacement/{NAME} --for=condition=Ready --timeout=3m\n"
        f"kubectl -n {NAMESPACE} rollout status deployment/{NAME} --timeout=8m"
    )
    print(f"from the table to a ready SGLang: {time.monotonic() - started:.0f} s")
    url = f"http://{NAME}.{NAMESPACE}.svc.cluster.local:30000/generate"
    found = [_tokens(installed, url, {**workload.body(), "input_ids": prompt}) for prompt in asked]
    (pod,) = installed.pods(f"app={NAME}")
    metrics = installed.get(f"http://{pod['status']['podIP']}:9640/metrics")
    checked, wrong = (
        sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))
        for name in ("slacktier_rows_checked_total", "slacktier_rows_mismatched_total")
    )
    print(f"{len(asked)} requests, {checked:.0f} rows checked, {wrong:.0f} wrong")
    assert found == expected
    assert checked > 0
    assert wrong == 0
    assert pod["spec"]["nodeName"] in DISK_NODES
    wait_for("the report that the binding is in force", lambda: _is_in_force(installed, pod), within_s=60)


def _is_in_force(site: Site, pod: dict[str, Any]) -> bool:
    meta = pod["metadata"]
    return site.cluster.ready("tablebinding", meta["name"], meta["namespace"])[0] == "True"


def _tokens(site: Site, url: str, body: dict[str, Any]) -> list[int]:
    said = site.cluster.run("exec", "curl", "-sf", "-H", "content-type: application/json", "-d", json.dumps(body), url)
    tokens: list[int] = json.loads(said)["output_ids"]
    return tokens
