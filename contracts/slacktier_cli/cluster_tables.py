# SPDX-License-Identifier: Apache-2.0
"""Our custom resources as tables for a terminal: what `kubectl describe` says, of all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from slacktier_cli.cluster_objects import full_name
from slacktier_cli.status_tables import milliseconds, new_table

Items = Sequence[Mapping[str, Any]]


def cluster_tables(everything: Mapping[str, Items]) -> Group:
    """All kinds; of placements, each layer's tier with its numbers and its sentence."""
    return Group(
        _lookup_tables(everything["lookuptables"]), _pools(everything["tierpools"]),
        _placements(everything["tableplacements"]), _layers(everything["tableplacements"]),
        _bindings(everything["tablebindings"]),
    )  # fmt: skip


def _status(item: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = item.get("status") or {}
    return found


def _ready(item: Mapping[str, Any]) -> tuple[str, str, str]:
    """(status, reason, message) of the Ready condition."""
    for each in _status(item).get("conditions") or ():
        if each["type"] == "Ready":
            return each["status"], each["reason"], each["message"]
    return "", "", "the operator has not looked at it yet"


def _lookup_tables(items: Items) -> Table:
    table = new_table("LOOKUP TABLES", "NAME", "MODEL", "LAYERS", "ROWS", "SIZE", "READY", "REASON", "MESSAGE")
    for item in items:
        spec, status = item["spec"], _status(item)
        table.add_row(
            full_name(item["metadata"]), spec.get("model", ""), ",".join(map(str, spec["layers"])),
            f"{status.get('rows', 0):,}", status.get("size", ""), *_ready(item),
        )  # fmt: skip
    return table


def _pools(items: Items) -> Table:
    table = new_table("TIER POOLS", "NAME", "TIER", "MEMBERS", "FREE", "READ us", "READY", "REASON", "MESSAGE")
    for item in items:
        status = _status(item)
        read = status.get("read")
        source = "measured" if status.get("measured") else "given"
        model = f"{read['aUs']:g} + {read['bUs']:g} a page ({source})" if read else ""
        table.add_row(
            item["metadata"]["name"], item["spec"]["tier"], status.get("readyMembers", ""), status.get("free", ""),
            model, *_ready(item),
        )  # fmt: skip
    return table


def _placements(items: Items) -> Table:
    table = new_table(
        "PLACEMENTS", "NAME", "MODEL", "TIERS", "CACHE", "STAGED", "SLOWDOWN", "PODS", "READY", "REASON", "MESSAGE"
    )  # fmt: skip
    for item in items:
        status = _status(item)
        table.add_row(
            full_name(item["metadata"]), status.get("model", ""), status.get("tiers", ""), status.get("cache", ""),
            f"{status.get('stagedPercent', 0)}%", status.get("slowdown", ""), str(status.get("pods", 0)),
            *_ready(item),
        )  # fmt: skip
    return table


def _layers(placements: Items) -> Table:
    """What is in force, and the plan that waits where there is one."""
    table = new_table(
        "LAYERS", "PLACEMENT", "LAYER", "", "POOL", "TIER", "WINDOW ms", "READ ms", "MARGIN ms", "STALL ms", "CACHE",
        "WHY",
    )  # fmt: skip
    for item in placements:
        status = _status(item)
        plan = status.get("plan") or {}
        for state, layers in (("in force", status.get("layers")), (f"plan {plan.get('id')}", plan.get("layers"))):
            for layer in layers or ():
                table.add_row(
                    full_name(item["metadata"]), str(layer["layerId"]), state, layer["pool"], layer["tier"],
                    *(milliseconds(layer[name]) for name in ("windowMs", "readMs", "marginMs", "stallMs")),
                    f"{layer['cacheRows']:,}", layer["reason"],
                )  # fmt: skip
    return table


def _bindings(items: Items) -> Table:
    table = new_table(
        "BINDINGS", "POD", "PLACEMENT", "LAYER", "REPLICA", "TIER", "WINDOW ms", "MEASURED ms", "STALL ms", "HIT RATE",
        "IN FORCE",
    )  # fmt: skip
    for item in items:
        spec, status = item["spec"], _status(item)
        measured = {layer["layerId"]: layer for layer in status.get("layers") or ()}
        for layer in spec["layers"]:
            seen = measured.get(layer["layerId"], {})
            rate = seen.get("hitRate")
            table.add_row(
                full_name(item["metadata"]), full_name(spec["placement"]), str(layer["layerId"]),
                seen.get("replica") or ",".join(layer["replicas"]), layer.get("tier", ""),
                *(milliseconds(seen.get(name)) for name in ("windowMs", "readMs", "stallMs")),
                "" if rate is None else f"{rate:.1%}", "yes" if status.get("inForce") else "no",
            )  # fmt: skip
    return table
