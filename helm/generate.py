# SPDX-License-Identifier: Apache-2.0
"""The chart's generated files: definitions, the operator's rules, and the table of values in its README.

`make generate` writes them; a test says when they are out of date. What is generated from, and nothing else, is edited:
operator/crds, operator/deploy/rbac.yaml, helm/slacktier/values.yaml.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "helm/slacktier"
_SPDX = "# SPDX-License-Identifier: Apache-2.0\n"
_BEGIN, _END = "<!-- values: begin -->\n", "<!-- values: end -->\n"
_KEEP = "  annotations: {helm.sh/resource-policy: keep}\n"


def definition(text: str) -> str:
    """A definition as the chart has it: Helm upgrades it with the release and leaves it on uninstall."""
    head, found, rest = text.partition("\nmetadata:\n")
    if not found:
        raise ValueError("a definition without metadata")
    return f"{head}{found}{_KEEP}{rest}"


def operator_rules(text: str) -> str:
    """The rules of the one ClusterRole in the operator's manifests."""
    (role,) = (each for each in yaml.safe_load_all(text) if each["kind"] == "ClusterRole")
    rules = "".join(f"- {json.dumps(rule)}\n" for rule in role["rules"])
    return f"{_SPDX}# Generated from operator/deploy/rbac.yaml by `make generate`.\n{rules}"


def value_rows(text: str) -> list[tuple[str, str, str]]:
    """(path, default as JSON, description) of every value that is set in values.yaml, in its order.

    raises ValueError for a value without a `# --` line above it
    """
    rows: list[tuple[str, str, str]] = []
    _collect(yaml.compose(text), text.splitlines(), "", yaml.safe_load(text), rows)
    return rows


def _collect(node: Any, lines: list[str], prefix: str, values: Any, rows: list[tuple[str, str, str]]) -> None:
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        found = re.fullmatch(r"\s*# -- (.+)", lines[key.start_mark.line - 1])
        if found:
            rows.append((path, json.dumps(values[key.value]), found[1]))
        elif isinstance(value, yaml.MappingNode) and value.value:
            _collect(value, lines, f"{path}.", values[key.value], rows)
        else:
            raise ValueError(f"values.yaml: line {key.start_mark.line + 1}: {path} has no line `# -- ...` above it")


def readme(text: str, values: str) -> str:
    """The README with its table made anew."""
    before, _, rest = text.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise ValueError(f"README.md: no {_BEGIN.strip()} ... {_END.strip()}")
    rows = [f"| `{path}` | `{default}` | {said} |\n" for path, default, said in value_rows(values)]
    return f"{before}{_BEGIN}| Value | Default | What |\n|---|---|---|\n{''.join(rows)}{_END}{after}"


def files() -> dict[Path, str]:
    """Path -> content of every generated file."""
    crds = {CHART / "files/crds" / path.name: definition(path.read_text("utf-8"))
            for path in sorted((ROOT / "operator/crds").glob("*.yaml"))}  # fmt: skip
    rules = operator_rules((ROOT / "operator/deploy/rbac.yaml").read_text("utf-8"))
    table = readme((CHART / "README.md").read_text("utf-8"), (CHART / "values.yaml").read_text("utf-8"))
    return {**crds, CHART / "files/operator-rules.yaml": rules, CHART / "README.md": table}


if __name__ == "__main__":
    for path, content in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
