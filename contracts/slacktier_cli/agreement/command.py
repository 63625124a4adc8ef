# SPDX-License-Identifier: Apache-2.0
"""What `slacktier bench predict` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from slacktier_cli.agreement.judge import WITHIN_MS, WITHIN_SHARE, Agreement, Load
from slacktier_cli.agreement.run import Result, Settings, prepare, run
from slacktier_cli.demo.workloads import check_trace
from slacktier_cli.results import print_results
from slacktier_cli.sizes import parse_size

_COLUMNS = ("users", "disk", "cache rows", "predicted", "measured", "mean", "stalls", "pages", "measured", "agrees")


def run_and_print(
    *, out: Path, sessions: tuple[int, ...], seconds: float, warm_seconds: float, size: str, trace: Path | None,
    tp: int, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Run all cases, print them, and exit with 1 if any disagrees."""
    if trace is not None:
        check_trace(trace)
    settings = Settings(out, tuple(dict.fromkeys(sessions)), seconds, warm_seconds, parse_size(size), trace, tp, seed)
    prepared = prepare(settings)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=1.0)
        result = run(settings, prepared, lambda name, share: progress.update(task, description=name, completed=share))
    agreeing = sum(found.agrees for found in result.agreements)
    print_results(
        "predict", as_json_object(result), directory=out, as_json=as_json, rows=[_row(x) for x in result.agreements],
        columns=_COLUMNS,
        notes=[
            f"{agreeing} of {len(result.agreements)} cases agree within {WITHIN_SHARE:.0%} or {WITHIN_MS:g} ms",
            "ms; measured: median step less that with the tables in memory; mean: the same of means, which hold what "
            "other work on the machine costs; stalls: mean sum of the layers' stalls, as the engine counts them",
            *(_load_note(load) for load in result.loads),
        ],
    )  # fmt: skip
    if agreeing < len(result.agreements):
        raise typer.Exit(1)


def as_json_object(result: Result) -> dict[str, Any]:
    return {
        "agreeing": sum(found.agrees for found in result.agreements),
        "loads": [
            {
                "sessions": load.sessions, "step_ms": load.step_ms, "s_ms": load.s_ms,
                "windows_ms": dict(zip(map(str, load.layer_ids), load.windows_ms, strict=True)),
                "miss_curves": [list(curve.points) for curve in load.curves],
            }
            for load in result.loads
        ],
        "cases": [
            {
                "sessions": found.case.sessions, "disk": found.case.disk.name if found.case.disk else None,
                "cache_rows": list(found.case.cache_rows), "predicted_ms": found.predicted_ms,
                "measured_ms": found.measured_ms, "measured_mean_ms": found.measured_mean_ms,
                "stalls_ms": found.stalls_ms, "pages_predicted": list(found.pages_predicted),
                "pages_measured": list(found.pages_measured), "steps": found.steps, "agrees": found.agrees,
            }
            for found in result.agreements
        ],
    }  # fmt: skip


def _row(found: Agreement) -> tuple[Any, ...]:
    pages = [" + ".join(f"{x:.0f}" for x in both) for both in (found.pages_predicted, found.pages_measured)]
    times = (found.predicted_ms, found.measured_ms, found.measured_mean_ms, found.stalls_ms)
    case, rows = found.case, found.case.cache_rows
    where = case.disk.name.removeprefix("paper-") if case.disk else "memory"
    said = "yes" if found.agrees else "no"
    return case.sessions, where, f"{rows[0]} + {rows[1]}", *(f"{time:.2f}" for time in times), *pages, said


def _load_note(load: Load) -> str:
    windows = ", ".join(f"layer {k} {w:.2f}" for k, w in zip(load.layer_ids, load.windows_ms, strict=True))
    return f"{load.sessions} sessions: step {load.step_ms:.2f} ms, windows {windows} ms, s {load.s_ms:.3f} ms"
