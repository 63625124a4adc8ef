# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench record` and `bench rows`: what a row's checks cost, and how long rows take over TCP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slacktier_cli.results import print_results, working

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def record(
    mebibytes: Annotated[int, typer.Option("--mib", min=1, max=4096, help="Pages in work, in MiB.")] = 128,
    blocks: Annotated[int, typer.Option(min=1, help="Passes of each arm, interleaved.")] = 9,
    as_json: Json = False,
) -> None:
    """The cost of one row's tag and CRC32C, beside a plain copy and zlib's CRC32; one thread.

    Examples:
      slacktier bench record
      slacktier bench record --mib 4 --blocks 101
      slacktier bench record --json | jq '.arms | map_values(.ns_per_row)'
    """
    from slacktier_native import bench_record

    with working("record: passes over pages"):
        result = bench_record.run(mebibytes=mebibytes, blocks=blocks)
    rows = [(name, arm["ns_per_row"], arm["gib_per_s"], arm["ratio_to_memcpy"]) for name, arm in result["arms"].items()]
    print_results(
        "record", result, directory=Path(), as_json=as_json, rows=rows,
        columns=("what", "ns/row", "GiB/s", "x memcpy"),
        notes=[f"{result['rows']:,} rows of {result['row_bytes']} B, medians of {blocks} passes"],
    )  # fmt: skip


def rows(
    count: Annotated[int, typer.Option("--rows", min=1, max=8192, help="Rows per request.")] = 700,
    clients: Annotated[int, typer.Option(min=1, max=32, help="Clients on one copy.")] = 8,
    pace_ms: Annotated[float, typer.Option(min=0.1, help="Between two requests of a client, in ms.")] = 29.0,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a client per block.")] = 100,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each arm, alternating.")] = 5,
    as_json: Json = False,
) -> None:
    """Rows over TCP on loopback: a lone client without pause, and several at a decode step's pace.

    The server is a process of its own that holds the rows once. Every record is checked.

    Examples:
      slacktier bench rows
      slacktier bench rows --clients 2 --pace-ms 10
      slacktier bench rows --json | jq '.p50_ms, .ratio_to_lone'
    """
    from slacktier_native import bench_rows

    with working("rows: requests on loopback"):
        result = bench_rows.run(rows=count, clients=clients, pace_ms=pace_ms, requests=requests, blocks=blocks)
    worst = max(range(clients), key=lambda index: result["clients_p50_ms"][index])
    print_results(
        "rows", result, directory=Path(), as_json=as_json, columns=("what", "p50 ms", "p99 ms"),
        rows=[
            (f"one client without pause, {count} rows", result["p50_ms"], result["p99_ms"]),
            (f"one client every {pace_ms:g} ms", result["lone_p50_ms"], result["lone_p99_ms"]),
            (
                f"the slowest of {clients} every {pace_ms:g} ms",
                result["clients_p50_ms"][worst],
                result["clients_p99_ms"][worst],
            ),
        ],
        notes=[f"{clients} clients on one copy: {result['ratio_to_lone']:.2f} x the lone client's median"],
    )  # fmt: skip
