# SPDX-License-Identifier: Apache-2.0
"""The custom resources at a real API server: samples are taken, and bad ones refused with a sentence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import objects
import pytest
import yaml
from harness import Cluster, RefusedError

SAMPLES = sorted((Path(__file__).parents[2] / "operator/samples").glob("*.yaml"))
Change = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_admitted(crds: Cluster, path: Path) -> None:
    said = crds.kubectl("apply", "--dry-run=server", "-f", str(path))
    assert said.count("created") + said.count("configured") == len(
        [each for each in yaml.safe_load_all(path.read_text()) if each]
    )


def spec(**changes: Any) -> Change:
    return lambda document: document["spec"].update(changes)


def without(*keys: str) -> Change:
    return lambda document: [document["spec"].pop(key) for key in keys]


def layer(**changes: Any) -> Change:
    return lambda document: document["spec"]["layers"][0].update(changes)


def member(**changes: Any) -> Change:
    return lambda document: document["spec"]["members"][0].update(changes)


BAD_TABLES = [
    ("two sources", spec(source={"path": "/m", "synthetic": {"rows": 1}}), "exactly one"),
    ("no source", spec(source={}), "exactly one"),
    ("relative path", spec(source={"path": "models"}), "spec.source.path"),
    ("unknown family", spec(family="llama"), "Unsupported value"),
    ("no layers", spec(layers=[]), "spec.layers"),
    ("a layer twice", spec(layers=[1, 1]), "Duplicate value"),
    ("negative layer", spec(layers=[-1]), "spec.layers"),
    ("layer as text", spec(layers=["one"]), "must be of type integer"),
    ("no rows", spec(source={"synthetic": {"rows": 0}}), "rows"),
    ("negative rows", spec(source={"synthetic": {"rows": -5}}), "rows"),
    ("unknown key", spec(sauce=1), "unknown field"),
    ("claim with a bad name", spec(source={"persistentVolumeClaim": {"claimName": "UPPER"}}), "claimName"),
    ("claim path from the root", spec(source={"persistentVolumeClaim": {"claimName": "c", "path": "/etc"}}), "path"),
    ("missing family", without("family"), "Required value"),
    ("model as a number", spec(model=7), "must be of type string"),
]
BAD_POOLS = [
    ("unknown tier", spec(tier="tape"), "Unsupported value"),
    ("neither members nor nodes", without("members"), "either members or nodes"),
    ("members and nodes", spec(nodes={"matchLabels": {"a": "b"}}), "either members or nodes"),
    ("memory node with a path", member(path="/mnt"), "have no path"),
    ("disk without a path", spec(tier="nvme"), "need a path"),
    ("emulated without a read model", lambda d: (d["spec"].update(tier="emulated"), d["spec"].pop("read"),
                                                 d["spec"]["members"][0].update(path="/p")), "read model"),
    ("capacity in unknown units", member(capacity="10 GB"), "capacity"),
    ("negative capacity", member(capacity="-1Gi"), "capacity"),
    ("capacity as a number", member(capacity=10), "must be of type string"),
    ("a member twice", lambda d: d["spec"]["members"].append(d["spec"]["members"][0]), "Duplicate value"),
    ("no member", spec(members=[]), "members"),
    ("negative read time", spec(read={"aUs": -1}), "aUs"),
    ("read time of two minutes", spec(read={"aUs": 120e6}), "aUs"),
    ("no units", spec(units=0), "units"),
    ("negative cost", spec(costPerGib=-1), "costPerGib"),
    ("port out of range", member(port=70000), "port"),
    ("format as text", member(format="yes"), "must be of type boolean"),
]  # fmt: skip
RISING = [{"cacheRows": 0, "pages": 1}, {"cacheRows": 9, "pages": 2}]
BAD_PLACEMENTS = [
    ("unknown tier", layer(tier="floppy"), "Unsupported value"),
    ("negative window", layer(windowMs=-0.1), "windowMs"),
    ("window with a unit", layer(windowMs="0.27ms"), "must be of type number"),
    ("window longer than the step", layer(windowMs=50), "longer than the step"),
    ("share over 1", layer(cacheShare=1.5), "cacheShare"),
    ("shares over 1 together", lambda d: [each.update(cacheShare=0.7) for each in d["spec"]["layers"]], "more than 1"),
    ("negative rows", spec(cacheRowsPerRank=-1), "cacheRowsPerRank"),
    ("miss curve that rises", layer(misses=RISING), "never read more"),
    ("miss curve not from 0", layer(misses=[{"cacheRows": 5, "pages": 1}]), "at 0 cache rows"),
    ("no miss curve", layer(misses=[]), "misses"),
    ("a layer twice", lambda d: d["spec"]["layers"].append(d["spec"]["layers"][0]), "Duplicate value"),
    ("no layers", spec(layers=[]), "layers"),
    ("no step", spec(stepMs=0), "stepMs"),
    ("no replicas", spec(replicas=0), "replicas"),
    ("five replicas", spec(replicas=5), "replicas"),
    ("unknown approval", spec(approval="Perhaps"), "Unsupported value"),
    ("no ranks", spec(ranks=0), "ranks"),
    ("unknown key", spec(tiers="all"), "unknown field"),
    ("missing table", without("table"), "Required value"),
    ("a mebibyte of junk", spec(table="x" * (1 << 20)), "table"),
]  # fmt: skip
BAD = [
    *((f"table: {name}", objects.table(), change, says) for name, change, says in BAD_TABLES),
    *((f"pool: {name}", objects.pool("p", "node1"), change, says) for name, change, says in BAD_POOLS),
    *((f"placement: {name}", objects.placement(), change, says) for name, change, says in BAD_PLACEMENTS),
]


def test_fifty_bad_manifests_are_there() -> None:
    assert len(BAD) >= 50


@pytest.mark.parametrize(("good", "change", "says"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_manifest_is_refused_by_the_api_server(
    crds: Cluster, good: dict[str, Any], change: Change, says: str
) -> None:
    document = copy.deepcopy(good)
    change(document)
    with pytest.raises(RefusedError, match=says):
        crds.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(document))


@pytest.mark.parametrize(
    ("kind", "good", "change", "says"),
    [
        ("lookuptable", objects.table("fixed"), spec(layers=[1]), "cannot change"),
        ("lookuptable", objects.table("fixed"), spec(family="qwen3.8"), "cannot change"),
        ("tierpool", objects.pool("fixed", "node1"), spec(tier="rdma"), "tier cannot change"),
        ("tableplacement", objects.placement("fixed"), spec(table="other"), "table cannot change"),
    ],
)
def test_what_would_need_staging_anew_cannot_change(
    crds: Cluster, kind: str, good: dict[str, Any], change: Change, says: str
) -> None:
    crds.apply(good)
    try:
        changed = copy.deepcopy(good)
        change(changed)
        with pytest.raises(RefusedError, match=says):
            crds.apply(changed)
    finally:
        crds.kubectl("delete", kind, "fixed", "--ignore-not-found")


def test_short_names_and_category(crds: Cluster) -> None:
    for short in ("lt", "tp", "tpl", "tb", "slacktier"):
        crds.kubectl("get", short, "-A")
