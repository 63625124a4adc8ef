# SPDX-License-Identifier: Apache-2.0
"""Results of measurements: one JSON object with the machine beside the figures, or a table for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from slacktier_cli.machine import describe_machine


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on stderr what runs and for how long it has; silent where stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(what, total=None)
        yield


def figure(value: Any) -> str:
    """A number with three significant digits, whole from 1,000 on; other values as they are."""
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def print_results(
    name: str, result: dict[str, Any], *, directory: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]],
    as_json: bool, notes: Sequence[str] = (),
) -> None:  # fmt: skip
    """Print a measurement.

    result     what --json prints, together with `bench` (its name) and `machine`
    directory  where the measured file lies, for the machine's disk
    rows       the table for people, one value per column
    notes      sentences under the table
    """
    machine = describe_machine(directory)
    if as_json:
        json.dump({"bench": name, "machine": machine.as_dict(), **result}, sys.stdout)
        print()
        return
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*map(figure, row))
    console = Console(highlight=False)
    console.print(str(machine), soft_wrap=True)
    console.print(table)
    for note in notes:
        console.print(note, soft_wrap=True)
