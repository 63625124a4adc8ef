# SPDX-License-Identifier: Apache-2.0
"""`slacktier plan`: from measured windows, read models and miss curves to where each table lives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slacktier.errors import ConfigError
from slacktier.window import decide
from slacktier_cli.outputs import check_output
from slacktier_cli.planning.load import load_plan
from slacktier_cli.planning.paper import paper_report
from slacktier_cli.planning.report import Report, as_json
from slacktier_cli.planning.tables import show_paper, show_plan
from slacktier_cli.planning.what_if import run_case, standard_cases


def command(
    file: Annotated[Path | None, typer.Argument(help="Plan file (YAML); docs/examples/plan/ has some.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="sessions=N, instances=N, disks=N, table=N, row-bits=4, or all; repeat it."),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print the paper's figures beside the rule's.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Write the plan as one page with its figure.")] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Place tables by the window rule, and say with numbers why.

    Exit code 0 if every table has a place within the SLO, 1 if not, 2 if the input is wrong.

    Examples:
      slacktier plan docs/examples/plan/v41-1-disk.yaml
      slacktier plan docs/examples/plan/v41-1-disk.yaml --what-if all --html plan.html
      slacktier plan docs/examples/plan/v41-1-disk.yaml --what-if sessions=256,disks=4
      slacktier plan --paper
    """
    if paper:
        if file is not None or what_if or html is not None:
            raise ConfigError("--paper takes no file, --what-if or --html")
        _paper(as_json_)
        return
    if file is None:
        raise ConfigError("a plan file is missing", hint="docs/examples/plan/ holds files to start from")
    if html is not None:
        check_output("--html", html)
    report = make_report(file, what_if or [])
    if html is not None:
        from slacktier_cli.planning.page import write_page  # matplotlib is an extra

        write_page(html, report)
    if as_json_:
        print(json.dumps(as_json(report), allow_nan=False))
    else:
        show_plan(_console(), report)
    if not report.decision.fits:
        raise typer.Exit(1)


def make_report(file: Path, what_if: list[str]) -> Report:
    """Read, decide, and run the what-if cases."""
    plan = load_plan(file)
    try:
        problem, notes = plan.problem()
        names = [name for text in what_if for name in (standard_cases(plan) if text == "all" else [text])]
        cases = tuple(run_case(plan, name) for name in dict.fromkeys(names))
    except ConfigError as exc:
        raise ConfigError(f"{file}: {exc}", hint=exc.hint) from exc
    return Report(str(file), plan, problem, decide(problem), notes, cases)


def _paper(as_json_: bool) -> None:
    report = paper_report()
    if as_json_:
        print(json.dumps(report, allow_nan=False))
    else:
        show_paper(_console(), report)


def _console() -> Console:
    """Wide enough for the tables where the output goes to a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)
