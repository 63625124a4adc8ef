# SPDX-License-Identifier: Apache-2.0
"""tierd's resources as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table

from slacktier_cli.sizes import size_text

Items = Sequence[Mapping[str, Any]]


def status_tables(everything: Mapping[str, Any]) -> Group:
    """All kinds that have something to show."""
    return Group(
        _tables(everything["tables"]), _replicas(everything["replicas"]), _places(everything["pools"]),
        _bindings(everything["bindings"]), _work(everything["tasks"]),
    )  # fmt: skip


def new_table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    return table


def _message(conditions: Items) -> str:
    return "; ".join(str(each["message"]) for each in conditions if each["status"] != "True" and each["message"])


def _tables(items: Items) -> Table:
    table = new_table("TABLES", "NAME", "LAYER", "MODEL", "ROWS", "SIZE", "COMPLETE COPIES", "MESSAGE")
    for item in items:
        status = item["status"]
        table.add_row(
            item["name"], str(item["spec"]["layer_id"]), status["model"], f"{status['rows']:,}",
            size_text(status["region_bytes"]), str(status["replicas_complete"]), _message(status["conditions"]),
        )  # fmt: skip
    return table


def _replicas(items: Items) -> Table:
    table = new_table("REPLICAS", "NAME", "TABLE", "TIER", "PLACE", "STATE", "DONE", "EPOCH", "RESTARTS", "MESSAGE")
    for item in items:
        spec, status = item["spec"], item["status"]
        place = "/".join([spec["pool"], ",".join(status["members"])])
        table.add_row(
            item["name"], spec["table"], status["tier"] or "", place, status["state"], f"{status['progress']:.0%}",
            str(status["epoch"]), str(status["restarts"]), status["message"],
        )  # fmt: skip
    return table


def _places(items: Items) -> Table:
    table = new_table("PLACES", "POOL/MEMBER", "TIER", "NODE", "STATE", "FREE", "MESSAGE")
    for item in items:
        for member in item["status"]["members"]:
            table.add_row(
                f"{item['name']}/{member['name']}", item["spec"]["tier"], member["node"], member["state"],
                size_text(member["free_bytes"]), member["message"],
            )  # fmt: skip
    return table


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _bindings(items: Items) -> Table:
    table = new_table(
        "BINDINGS", "INSTANCE", "LAYER", "REPLICA", "TIER", "WINDOW ms", "READ ms", "MEASURED ms", "STALL ms",
        "HIT RATE", "IN FORCE",
    )  # fmt: skip
    for item in items:
        status = item["status"]
        is_in_force = status["access_version"] == status["in_force_version"] != 0
        for layer in status["layers"]:
            rate = layer["hit_rate"]
            table.add_row(
                item["name"], str(layer["layer_id"]), layer["replica"], layer["tier"],
                milliseconds(layer["window_ms"]), milliseconds(layer["read_ms"]),
                milliseconds(layer["measured_read_ms"]), milliseconds(layer["measured_stall_ms"]),
                "" if rate is None else f"{rate:.1%}", "yes" if is_in_force else "no",
            )  # fmt: skip
    return table


def _work(items: Items) -> Table:
    table = new_table("WORK", "TASK", "REPLICA", "NODE", "STATE", "PHASE", "DONE", "OF", "MESSAGE")
    for item in items:
        status = item["status"]
        if status["state"] in ("queued", "running", "failed"):
            table.add_row(
                item["name"], item["spec"]["replica"], item["spec"]["node"], status["state"], status["phase"],
                size_text(status["done_bytes"]), size_text(status["total_bytes"]), status["message"][:200],
            )  # fmt: skip
    return table
