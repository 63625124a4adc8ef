# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench hooks`: what the SGLang plugin costs a step on the host. Imports torch and SGLang when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slacktier.errors import ConfigError
from slacktier_cli.results import print_results, working


def hooks(
    table_gib: Annotated[float, typer.Option("--table-gib", min=0.01, help="Engine's table; ours beside it.")] = 1.0,
    steps: Annotated[int, typer.Option(min=20, help="Steps per arm and batch size, interleaved.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Host time of the plugin's hooks in a step on a CPU, beside the engine's own gather from a table in memory.

    Runs where SGLang 0.5.22 or 0.5.23 is installed. No batch, 1 and 128 tokens; arms alternate step by step over the
    same row ids, after a bit-for-bit comparison: the engine's lookup, ours with all rows cached, ours with none.

    Examples:
      slacktier bench hooks
      slacktier bench hooks --table-gib 4 --steps 2000 --json
    """
    try:
        from slacktier_engine import hooks_bench
    except ModuleNotFoundError as exc:
        raise ConfigError(f"bench hooks needs torch: {exc}") from exc
    with working("hooks: stock, cached, missing"):
        try:
            result = hooks_bench.run(table_gib, steps)
        except ModuleNotFoundError as exc:
            raise ConfigError(f"bench hooks needs sglang: {exc}") from exc
    rows = [
        (f"{cell['tokens']} tokens, {arm.replace('_', ' ')}", times["p50_us"], times["p99_us"])
        for cell in result["cells"]
        for arm, times in cell.items()
        if isinstance(times, dict)
    ]
    print_results(
        "hooks", result, directory=Path(), as_json=as_json, columns=("us", "median", "p99"), rows=rows
    )  # fmt: skip
