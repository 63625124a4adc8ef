# SPDX-License-Identifier: Apache-2.0
"""The operator's role: the flows of test_placing run with its token, and what it does not need is refused."""

from __future__ import annotations

import pytest
from harness import RefusedError
from system import NAMESPACE, System

AS = f"--as=system:serviceaccount:{NAMESPACE}:slacktier-operator"
FORBIDDEN = [
    ("get", "secrets"), ("list", "secrets", "-A"), ("get", "configmaps"), ("list", "configmaps", "-A"),
    ("create", "pods"), ("delete", "pods"), ("create", "pods/exec"), ("get", "pods/log"), ("update", "nodes"),
    ("delete", "nodes"), ("patch", "nodes"), ("create", "lookuptables"), ("delete", "lookuptables"),
    ("patch", "lookuptables"), ("delete", "tierpools"), ("patch", "tableplacements"), ("delete", "tableplacements"),
    ("create", "serviceaccounts"), ("create", "clusterrolebindings"), ("list", "events", "-A"), ("delete", "events"),
    ("create", "deployments"), ("impersonate", "users"), ("create", "customresourcedefinitions"),
    ("patch", "customresourcedefinitions"), ("delete", "namespaces"),
]  # fmt: skip


@pytest.mark.parametrize("what", FORBIDDEN, ids=" ".join)
def test_what_the_operator_does_not_need_is_refused(system: System, what: tuple[str, ...]) -> None:
    with pytest.raises(RefusedError, match="no"):
        system.cluster.kubectl("auth", "can-i", *what, AS)


def test_twenty_things_are_refused() -> None:
    assert len(FORBIDDEN) >= 20


def test_a_real_call_is_refused_too(system: System) -> None:
    with pytest.raises(RefusedError, match="forbidden"):
        system.cluster.kubectl("get", "secrets", "-A", AS)
    with pytest.raises(RefusedError, match="forbidden"):
        system.cluster.kubectl("delete", "tierpool/any", AS)
