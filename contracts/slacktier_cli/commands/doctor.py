# SPDX-License-Identifier: Apache-2.0
"""`slacktier doctor`: what this machine has, what is missing, what that means and how to get it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slacktier_cli.doctor.checks import Check, Status, demo_runs, judge
from slacktier_cli.doctor.probe import probe
from slacktier_cli.machine import describe_machine

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.MISSING: "red"}


def _table(checks: list[Check]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "means"):
        table.add_column(column, overflow="fold")
    for check in checks:
        means = Text(check.means)
        if check.remedy:
            means.append(f"\nhint: {check.remedy}")
        table.add_row(Text(check.status, style=_COLOURS[check.status]), check.name, Text(check.found), means)
    return table


def command(
    directory: Annotated[Path, typer.Option("--dir", help="Where tables would be staged.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine has and lacks: python, native library, io_uring, disk, memory, devices, parts.

    Devices are listed, never opened. Exit code 0 if the demo can run here, 1 if something that it needs is missing.

    Examples:
      slacktier doctor
      slacktier doctor --dir /mnt/nvme0
      slacktier doctor --json | jq '.checks[] | select(.status != "ok")'
    """
    checks = judge(probe(directory))
    machine = describe_machine(directory)
    runs = demo_runs(checks)
    if as_json:
        print(
            json.dumps(
                {"demo_runs": runs, "machine": machine.as_dict(), "checks": [dataclasses.asdict(c) for c in checks]}
            )
        )
    else:
        console = Console(highlight=False)
        console.print(str(machine), soft_wrap=True)
        console.print(_table(checks))
        console.print("`slacktier demo` can run here." if runs else "`slacktier demo` cannot run here yet: see above.")
    if not runs:
        raise typer.Exit(1)
