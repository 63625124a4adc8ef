# SPDX-License-Identifier: Apache-2.0
"""The operator's role holds nothing that the flows before this file did not use, by the API server's own audit log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import pytest
import yaml
from harness import ROOT
from system import System

ROLE: Final = ROOT / "operator/deploy/rbac.yaml"
AUDIT: Final = Path(os.environ.get("SLACKTIER_CLUSTER_STATE", ROOT / "build/cluster")) / "log/audit.log"
FLOWS: Final = "test_placing.py"
Call = tuple[str, str, str]  # API group, resource with its subresource, verb


def allowed() -> set[Call]:
    """Every verb on every resource of the operator's cluster role."""
    (role,) = (each for each in yaml.safe_load_all(ROLE.read_text()) if each["kind"] == "ClusterRole")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used() -> set[Call]:
    """What the operator asked for and got."""
    found = set()
    for line in AUDIT.read_text().splitlines():
        event = json.loads(line)
        if event["responseStatus"].get("code", 0) < 300 and (about := event.get("objectRef")):
            resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
            found.add((about.get("apiGroup", ""), resource, event["verb"]))
    return found


def test_every_verb_of_the_role_is_used(system: System, request: pytest.FixtureRequest) -> None:
    if not any(item.path.name == FLOWS for item in request.session.items):
        pytest.skip(f"needs the flows of {FLOWS} in the same run")
    asked, held = used(), allowed()
    print(f"{len(held)} verbs in the role, {len(held & asked)} of them used")
    assert held - asked == set()
