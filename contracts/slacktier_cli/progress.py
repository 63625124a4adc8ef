# SPDX-License-Identifier: Apache-2.0
"""A progress bar on stderr for work that counts bytes; silent where stderr is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


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
