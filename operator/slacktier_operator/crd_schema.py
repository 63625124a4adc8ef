# SPDX-License-Identifier: Apache-2.0
"""CustomResourceDefinitions from the pydantic models of `slacktier.crd`: structural OpenAPI v3 schemas with CEL rules.

`make generate` writes operator/crds; a test says when they are out of date.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from slacktier.crd import RESOURCES
from slacktier.crd_model import GROUP, VERSION, Column, CustomResource

_HEADER = "# SPDX-License-Identifier: Apache-2.0\n# Generated from contracts/slacktier/crd_*.py by `make generate`.\n"
# What a model's own documentation would add to every object; `kubectl explain` shows descriptions.
_DROPPED = ("title", "$defs", "additionalProperties")


def structural(model: Any, *, defaults: bool = True) -> dict[str, Any]:
    """The model's schema as the API server takes it: no references, no unions, no nulls."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})
    cleaned: dict[str, Any] = _cleaned(schema, definitions, defaults)
    return cleaned


def _cleaned(node: Any, definitions: dict[str, Any], defaults: bool) -> Any:
    if isinstance(node, list):
        return [_cleaned(item, definitions, defaults) for item in node]
    if not isinstance(node, dict):
        return node
    node = _resolved(copy.deepcopy(node), definitions)
    free_keys = isinstance(node.get("additionalProperties"), dict)
    kept = {key: value for key, value in node.items() if key not in _DROPPED or (key != "title" and free_keys)}
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    _exclusive_bounds(kept)
    # A status has no defaults: what the operator does not say is absent.
    if kept.get("default") is None or not defaults:
        kept.pop("default", None)
    out: dict[str, Any] = {}
    for key, value in kept.items():
        if key == "properties":
            out[key] = {name: _cleaned(each, definitions, defaults) for name, each in value.items()}
        elif key in ("default", "enum", "required", "x-kubernetes-validations", "x-kubernetes-list-map-keys"):
            out[key] = value
        else:
            out[key] = _cleaned(value, definitions, defaults)
    return out


def _resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Without $ref, and without the null of an optional field; what stands beside them wins."""
    while True:
        if "$ref" in node:
            target = definitions[node.pop("$ref").rpartition("/")[2]]
        elif "anyOf" in node:
            choices = [choice for choice in node.pop("anyOf") if choice != {"type": "null"}]
            if len(choices) != 1:
                raise ValueError(f"a union of {len(choices)} types is no structural schema: {choices}")
            (target,) = choices
        else:
            return node
        node = copy.deepcopy(target) | node


def _exclusive_bounds(node: dict[str, Any]) -> None:
    """JSON Schema's numeric exclusive bounds as the boolean that goes with a bound in OpenAPI v3.0."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        value = node.get(exclusive)
        if value is not None and not isinstance(value, bool):
            node[bound], node[exclusive] = value, True


def _column(column: Column) -> dict[str, Any]:
    shown = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    return shown | ({"priority": column.priority} if column.priority else {})


def definition(resource: type[CustomResource]) -> dict[str, Any]:
    """The CustomResourceDefinition of one kind."""
    spec, status = structural(resource.spec_model), structural(resource.status_model, defaults=False)
    age = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    schema = {
        "type": "object",
        "description": (resource.spec_model.__doc__ or "").strip().splitlines()[0],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "slacktier"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [resource.short],
                "categories": ["all", "slacktier"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [*(_column(column) for column in resource.columns), age],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def files() -> dict[str, str]:
    """File name -> YAML of every kind."""
    return {
        f"{GROUP}_{resource.plural}.yaml": _HEADER + yaml.safe_dump(definition(resource), sort_keys=False, width=120)
        for resource in RESOURCES
    }


def write(directory: Path) -> None:
    """Write all files; others in the directory are left alone."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "crds")
