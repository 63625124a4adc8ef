# SPDX-License-Identifier: Apache-2.0
"""What a person sees while blocks run; silent where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Live:
    """Requests done, and the running mean of TPOT in this block."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=total, now="")
        self._tpot_ms, self._tpots, self._failed = 0.0, 0, 0

    def begin(self, what: str) -> None:
        self._tpot_ms, self._tpots, self._failed = 0.0, 0, 0
        self._bar.update(self._task, description=what, now="")

    def told(self, progress: Mapping[str, Any]) -> None:
        self._tpot_ms += progress["tpot_ms"]
        self._tpots += progress["tpots"]
        self._failed += progress["failed"]
        now = f"TPOT {self._tpot_ms / self._tpots:.2f} ms" if self._tpots else ""
        now += f", {self._failed} failed" if self._failed else ""
        self._bar.update(self._task, advance=progress["done"] + progress["failed"], now=now)


@contextmanager
def live(console: Console, total: int) -> Iterator[Live]:
    """The display of a run of so many requests."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield Live(bar, total)
