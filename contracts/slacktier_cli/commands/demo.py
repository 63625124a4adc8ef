# SPDX-License-Identifier: Apache-2.0
"""`slacktier demo`: the main job on this machine, from real text to a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slacktier.errors import ConfigError
from slacktier_cli.demo.arms import DEFAULT_ARMS, parse_arms
from slacktier_cli.demo.settings import DemoSettings
from slacktier_cli.interruption import interrupted_by_sigterm
from slacktier_cli.sizes import parse_size


def command(
    out: Annotated[Path, typer.Option(help="Directory of report.json, report.html and the tables.")] = Path(
        "build/demo"
    ),
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Sessions to replay: a token file (.npz) or conversations (.jsonl). Default: the Python library."
        ),
    ] = None,
    sessions: Annotated[
        int, typer.Option(help="Users at once; each sends its next request when the last has ended.")
    ] = 8,
    blocks: Annotated[int, typer.Option(help="Blocks per arm.")] = 3,
    block_seconds: Annotated[
        float | None, typer.Option(help="Length of a block, prefill included. Default: 10 to 30, by the disk's speed.")
    ] = None,
    history_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a user brings along when it enters a session. Default: by the disk.")
    ] = None,
    turn_tokens: Annotated[
        int | None, typer.Option(help="Later turns are cut to so many tokens. Default: by the disk.")
    ] = None,
    output_tokens: Annotated[int, typer.Option(help="Answers are cut to so many tokens.")] = 64,
    arms: Annotated[
        str, typer.Option(help="Placements to compare, comma-separated; dram must be among them.")
    ] = ",".join(DEFAULT_ARMS),
    tp: Annotated[int, typer.Option(help="Ranks that the rows are striped over; one of them runs here.")] = 4,
    size: Annotated[str, typer.Option(help="Rows of both tables together, in bytes.")] = "1G",
    cache_rows: Annotated[
        int, typer.Option(help="Row cache of cached arms, split evenly between the layers.")
    ] = 50_000,
    slo_pct: Annotated[float, typer.Option(help="Slowdown that the decision may accept, in percent of a step.")] = 1.0,
    profile: Annotated[
        str, typer.Option(help="Compute profile of the emulated engine: a name or a YAML file.")
    ] = "v41-h200",
    seed: Annotated[int, typer.Option(help="Seed of the tables, the workload and the order of blocks.")] = 1,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make the tables anew.")] = False,
    keep: Annotated[bool, typer.Option(help="Keep the tables for the next run.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report's JSON and nothing else.")] = False,
) -> None:
    """Stage both lookup tables, serve them, replay real sessions, and say where each layer's table can live.

    No GPU is needed: the engine is emulated. It waits as long as each layer would compute and does every lookup for
    real, on this machine's disk. The tables are scaled down to --size. Arms: dram (both layers in memory), nvme (both
    on this disk), later-nvme (only the later layer on disk), and the emulated devices paper-nvme-shared,
    paper-nvme-per-rank and paper-rdma; all but dram also with a row cache, as nvme-split.

    A token file holds, as a numpy .npz without pickles: tokens u32 [N]; session_offsets i64 [S+1]; turn_session u32,
    turn_role u8 (0 system, 1 user, 2 assistant, 3 tool), turn_start i64, turn_len u32, each [T], tiling the tokens;
    vocab_size. Conversations are one JSON object per line: {"messages": [{"role": "user", "content": "..."}, ...]}.

    Exit code 0 if every row was right and every arm measured something, 1 if not, 2 for bad input.

    Examples:
      slacktier demo
      slacktier demo --trace agent.npz --sessions 64
      slacktier demo --trace talks.jsonl --arms dram,nvme,later-nvme,paper-rdma
      slacktier demo --size 256M --blocks 1 --block-seconds 5 --out /tmp/demo --json
    """
    settings = DemoSettings(
        out=out, arms=parse_arms([name.strip() for name in arms.split(",") if name.strip()]), trace=trace,
        sessions=sessions, blocks=blocks, block_seconds=block_seconds, history_tokens=history_tokens,
        turn_tokens=turn_tokens, output_tokens=output_tokens, tp=tp, seed=seed, table_bytes=parse_size(size),
        cache_rows=cache_rows, slo_pct=slo_pct, profile=profile, is_fresh=fresh, keeps_tables=keep,
    )  # fmt: skip
    try:
        from slacktier_cli.demo.driver import run_demo
    except ImportError as exc:
        raise ConfigError(f"{exc.name} is not installed", hint="pip install 'slacktier[emulated]'") from exc
    with interrupted_by_sigterm():
        report = run_demo(settings, Console(stderr=True))
    if as_json:
        print(json.dumps(report, allow_nan=False))
    else:
        _show(report, out)
    if report["faults"]:
        raise typer.Exit(1)


def _show(report: dict[str, object], out: Path) -> None:
    from slacktier_cli.demo.console import print_report

    console = Console()
    print_report(report, console)
    console.print(f"Report: {out / 'report.html'} and {out / 'report.json'}", highlight=False)
