# SPDX-License-Identifier: Apache-2.0
"""The models of tierd's API: what they refuse, and that what they answer can be read back."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from slacktier.api import (
    KINDS,
    BindingSpec,
    ErrorBody,
    InstanceSpec,
    Kind,
    Listing,
    PoolSpec,
    Replica,
    ReplicaSpec,
    ReplicaStatus,
    Report,
    TableSpec,
)

LAYER = {"layer_id": 1, "table": "t", "window_ms": 0.27, "misses": [{"cache_rows": 0, "pages": 600}]}
INSTANCE = {"step_ms": 29.4, "layers": [LAYER]}
READ = {"a_us": 300, "b_us": 3.05}


def _without(spec: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name != key}


@pytest.mark.parametrize(
    ("model", "body", "where"),
    [
        (PoolSpec, {"tier": "nvme", "members": []}, "members"),
        (PoolSpec, {"tier": "tape", "members": [{"name": "a", "path": "/a"}]}, "tier"),
        (PoolSpec, {"tier": "nvme", "members": [{"name": "a"}]}, "a member of tier nvme has a path"),
        (PoolSpec, {"tier": "tcp", "members": [{"name": "a", "path": "/a"}]}, "neither path nor format"),
        (PoolSpec, {"tier": "nvme", "members": [{"name": "a", "path": "/a"}] * 2}, "given twice"),
        (PoolSpec, {"tier": "emulated", "members": [{"name": "a", "path": "/a"}]}, "needs a read model"),
        (PoolSpec, {"tier": "nvme", "members": [{"name": "A B", "path": "/a"}]}, "name"),
        (PoolSpec, {"tier": "nvme", "members": [{"name": "a", "path": "relative"}]}, "path"),
        (TableSpec, {"layer_id": 1}, "exactly one of checkpoint and synthetic"),
        (TableSpec, {"layer_id": 1, "checkpoint": {"path": "/c", "kind": "v41"}}, "kind"),
        (TableSpec, {"layer_id": "1", "checkpoint": {"path": "/c"}}, "layer_id"),
        (ReplicaSpec, {"table": "t"}, "pool"),
        (InstanceSpec, {**INSTANCE, "step_ms": 0}, "step_ms"),
        (InstanceSpec, {**INSTANCE, "step_ms": float("nan")}, "step_ms"),
        (InstanceSpec, {**INSTANCE, "layers": [LAYER, LAYER]}, "named twice"),
        (InstanceSpec, {**INSTANCE, "layers": [_without(LAYER, "misses")]}, "misses"),
        (BindingSpec, {"layers": [{"layer_id": 1, "replicas": list("abcde")}]}, "replicas"),
        (Report, {"in_force": -1, "ready": True, "seconds": 1}, "in_force"),
    ],
)
def test_body_that_makes_no_sense_is_refused_by_name(model: type[Any], body: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError, match=where):
        model.model_validate(body)


def test_every_kind_has_models_and_an_empty_status() -> None:
    assert set(KINDS) == set(Kind)
    for models in KINDS.values():
        assert models.status().model_dump(mode="json") is not None


def test_resource_reads_back_what_it_wrote() -> None:
    replica = Replica(
        kind=Kind.REPLICAS, name="t-nvme", version=7, generation=1, created_s=1.5,
        spec=ReplicaSpec(table="t", pool="nvme", members=("disk0",)), status=ReplicaStatus(),
    )  # fmt: skip
    listing = Listing[Replica](items=(replica,), version=7)
    assert Listing[Replica].model_validate_json(listing.model_dump_json()) == listing


def test_instance_spec_keeps_tiers_through_json() -> None:
    spec = InstanceSpec.model_validate({**INSTANCE, "layers": [{**LAYER, "tiers": ["nvme", "tcp"]}]})
    assert InstanceSpec.model_validate_json(spec.model_dump_json()) == spec


def test_error_says_what_and_the_way_out() -> None:
    body = ErrorBody.model_validate({"error": {"code": "sharing_refused", "message": "m", "details": {"slo_pct": 1}}})
    assert body.error.details == {"slo_pct": 1}


def test_emulated_pool_takes_what_it_emulates() -> None:
    pool = PoolSpec.model_validate({"tier": "emulated", "members": [{"name": "a", "path": "/a"}], "read": READ})
    assert pool.read is not None
    assert pool.read.read_model().b_us == 3.05
