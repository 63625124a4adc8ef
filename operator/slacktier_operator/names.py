# SPDX-License-Identifier: Apache-2.0
"""tierd's names for what Kubernetes calls by namespace and name; one rule, both ways where that is needed."""

from __future__ import annotations

import re
from typing import NamedTuple

from slacktier.api import Kind


class Key(NamedTuple):
    """A namespaced object; the namespace of a cluster-wide one is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def table_name(table: Key, layer_id: int) -> str:
    """tierd's table of one layer of a LookupTable."""
    return f"{table.namespace}.{table.name}.l{layer_id}"


def replica_name(placement: Key, layer_id: int, pool: str, member: str) -> str:
    """tierd's copy of one layer for a placement, on one member: it stays the same however often it is decided anew."""
    return f"{placement.namespace}.{placement.name}.l{layer_id}.{pool}.{member}"


def replica_prefix(placement: Key) -> str:
    return f"{placement.namespace}.{placement.name}.l"


def owner_of(kind: Kind, name: str) -> tuple[str, Key] | None:
    """The object that a resource of tierd's was made for, by its name; None where it is none of ours."""
    if kind is Kind.POOLS:
        return "TierPool", Key("", name)
    if kind is Kind.TABLES and (found := re.fullmatch(r"([^.]+)\.(.+)\.l\d+", name)):
        return "LookupTable", Key(found[1], found[2])
    if kind is Kind.REPLICAS and (found := re.match(r"([^.]+)\.(.+?)\.l\d+\.", name)):
        return "TablePlacement", Key(found[1], found[2])
    if kind is Kind.BINDINGS and "." in name:
        return "Pod", Key(*name.split(".", 1))
    return None


def instance_name(pod: Key) -> str:
    """A serving pod at tierd, as its token review names it."""
    return f"{pod.namespace}.{pod.name}"
