# SPDX-License-Identifier: Apache-2.0
"""Progress bars on stderr; silent where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextmanager
def byte_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields tell(phase, done_bytes, total_bytes); each phase gets a line with rate and remaining time."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<8}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks = {}

        def tell(phase: str, done_bytes: int, total_bytes: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total_bytes)
            bar.update(tasks[phase], completed=done_bytes)

        yield tell


class Bars:
    """A bar for each piece of long work, one after the other."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def work(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        ) as progress:
            task = progress.add_task(what, total=total)
            yield lambda done: progress.advance(task, done)
