# SPDX-License-Identifier: Apache-2.0
"""The custom resource definitions: generated, structural, small; the samples are what the models take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from slacktier.crd import RESOURCES
from slacktier.crd_model import API_VERSION, CustomResource, bytes_quantity, quantity_bytes
from slacktier.crd_placement import TablePlacementSpec
from slacktier.crd_table import LookupTableSpec
from slacktier_operator.crd_schema import definition, files

OPERATOR = Path(__file__).parents[2] / "operator"
BY_KIND = {resource.kind: resource for resource in RESOURCES}


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def schema_of(resource: type[CustomResource]) -> dict[str, Any]:
    schema: dict[str, Any] = definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def test_committed_definitions_are_what_the_models_generate() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in (OPERATOR / "crds").glob("*.yaml")}
    assert found == files(), "run `make generate`"


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_schema_is_structural(resource: type[CustomResource]) -> None:
    for node in nodes(schema_of(resource)):
        assert not {"$ref", "$defs", "anyOf", "allOf", "oneOf", "const", "title"} & set(node)
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            assert isinstance(node.get(bound, True), bool)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_every_list_is_bounded_so_that_rules_are_cheap_enough(resource: type[CustomResource]) -> None:
    for node in nodes(schema_of(resource)["properties"]["spec"]):
        if node.get("type") == "array":
            assert "maxItems" in node


def test_definitions_are_small_enough_for_a_client_side_apply() -> None:
    assert all(len(text) < 200_000 for text in files().values())


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.kind)
def test_columns_name_fields_that_exist(resource: type[CustomResource]) -> None:
    schema = schema_of(resource)
    for column in resource.columns:
        at = schema
        for part in column.json_path.partition("[")[0].strip(".").split("."):
            at = at["properties"][part]


SAMPLES = sorted((OPERATOR / "samples").glob("*.yaml"))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_what_the_models_take(path: Path) -> None:
    ours = [each for each in documents(path) if each["apiVersion"] == API_VERSION]
    assert ours
    for document in ours:
        BY_KIND[document["kind"]].spec_model.model_validate(document["spec"])


def test_there_are_samples() -> None:
    assert len(SAMPLES) >= 5


@pytest.mark.parametrize(
    ("text", "count"), [("1Ki", 1024), ("250Gi", 250 << 30), ("1.5Ti", 3 << 39), ("2G", 2_000_000_000), ("7", 7)]
)
def test_quantities(text: str, count: int) -> None:
    assert quantity_bytes(text) == count


@pytest.mark.parametrize("text", ["", "1 Gi", "-1Gi", "1GiB", "x", "1e9"])
def test_bad_quantities_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a quantity"):
        quantity_bytes(text)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (1023, "1023"), (1 << 30, "1Gi"), (3 << 29, "1.5Gi")])
def test_bytes_as_people_write_them(count: int, text: str) -> None:
    assert bytes_quantity(count) == text


def test_unknown_keys_are_refused_by_the_models_too() -> None:
    with pytest.raises(ValidationError, match="layerz"):
        LookupTableSpec.model_validate({"source": {"path": "/m"}, "family": "v41", "layerz": [1]})


def test_fields_are_camel_case_in_yaml_and_snake_case_here() -> None:
    layer = {"layerId": 1, "windowMs": 0.27, "misses": [{"cacheRows": 0, "pages": 600}]}
    spec = TablePlacementSpec.model_validate({"table": "t", "stepMs": 29.4, "layers": [layer]})
    assert spec.model_dump(by_alias=True)["layers"][0]["windowMs"] == 0.27
