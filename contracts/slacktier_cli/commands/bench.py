# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench`: measurements of the parts on this machine. Each one's logic lies in the part that it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slacktier.cache_policy import CachePolicy
from slacktier.errors import ConfigError
from slacktier_cli.bench_decode import decode
from slacktier_cli.bench_split import split
from slacktier_cli.bench_transfer import record, rows
from slacktier_cli.progress import byte_progress
from slacktier_cli.results import print_results, working
from slacktier_cli.sizes import parse_size

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Measure parts of SlackTier.")

app.command("decode")(decode)
app.command("split")(split)
app.command("record")(record)
app.command("rows")(rows)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command("hash")
def hash_rows(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prefill chunk.")] = 8192,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of a decode step.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Chunks; decode steps are twenty times as many.")] = 50,
    as_json: Json = False,
) -> None:
    """Row ids from token ids, all 48 of V4.1 per token: a prefill chunk and a decode step, on one core.

    Examples:
      slacktier bench hash
      slacktier bench hash --tokens 1024 --sequences 8
      slacktier bench hash --json | jq .tokens_per_s_per_core.median
    """
    from slacktier_rowids import bench

    with working("hash: chunks and steps"):
        result = bench.run(tokens=tokens, sequences=sequences, repeats=repeats)
    rate, step = result["tokens_per_s_per_core"], result["step_us"]
    print_results(
        "hash", result, directory=Path(), as_json=as_json,
        columns=("what", "median", "other"),
        rows=[
            (f"prefill, {tokens:,} tokens: tokens/s per core (best)", rate["median"], rate["best"]),
            (f"decode step, {sequences} sequences: us (p99)", step["p50"], step["p99"]),
        ],
    )  # fmt: skip


@app.command("stage")
def stage_throughput(
    directory: Annotated[Path, typer.Option("--dir", help="Where to measure; left as it was.")] = Path(),
    size: Annotated[str, typer.Option(help="Bytes of the table; the disk needs about twice as much.")] = "1G",
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each arm, alternating.")] = 5,
    threads: Annotated[int, typer.Option(min=2, max=20, help="Chunks in work at once, fio's too.")] = 16,
    as_json: Json = False,
) -> None:
    """Staging against fio, which reads and writes as much on the same disk but hashes and encodes nothing.

    Verification, which staging always does before it marks a table complete, is timed on its own.

    Examples:
      slacktier bench stage
      slacktier bench stage --dir /mnt/nvme0 --size 4G --blocks 3
      slacktier bench stage --json | jq .ratio_to_fio
    """
    from slacktier_tierd import bench

    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory", hint="name one on the disk to measure: --dir DIR")
    with byte_progress() as progress:
        result = bench.run(directory, size_bytes=parse_size(size), blocks=blocks, threads=threads, progress=progress)
    rows = [
        (f"{arm}, GiB/s", result[f"{arm}_gib_s"], min(measured), max(measured))
        for arm in ("stage", "fio", "verify")
        for measured in [result["blocks"][f"{arm}_gib_s"]]
    ]
    print_results(
        "stage", result, directory=directory, as_json=as_json, rows=rows, columns=("what", "median", "min", "max"),
        notes=[f"{blocks} blocks; staging at {result['ratio_to_fio']:.0%} of fio, median over pairs of blocks"],
    )  # fmt: skip


@app.command("reads")
def reads(
    region: Annotated[Path, typer.Argument(help="A complete region in one file or on one block device.")],
    pages: Annotated[
        list[int] | None, typer.Option(min=1, help="Pages per burst; repeat it for several sizes.")
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of each arm, interleaved.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds per block.")] = 1.5,
    seed: Annotated[int, typer.Option(min=0, help="Draws pages and the order of the arms.")] = 1,
    as_json: Json = False,
) -> None:
    """Bursts of random page reads: ours with io_uring and with preadv, against fio, mmap and a peer, on one file.

    A burst is what a decode step asks for. Ours check every row that arrives; fio checks nothing.

    Examples:
      slacktier bench reads /mnt/nvme0/layer1.region
      slacktier bench reads layer1.region --pages 750 --pages 3000 --blocks 3
      slacktier bench reads layer1.region --json | jq '.steps[] | [.pages, .iops_ratio_to_fio]'
    """
    from slacktier_native import bench_reads

    with working("reads: bursts of pages"):
        result = bench_reads.run(
            region, pages=tuple(pages or bench_reads.PAGES), blocks=blocks, seconds=seconds, seed=seed
        )
    table = [
        (
            arm,
            step["pages"],
            f["iops"],
            f["burst_ms_p50"],
            f["burst_ms_p99"],
            f["cpu_us_per_page"],
            f["machine_cpu_us_per_page"],
        )
        for step in result["steps"]
        for arm, f in step["arms"].items()
    ]
    print_results(
        "reads", result, directory=region.parent, as_json=as_json, rows=table,
        columns=("arm", "pages", "reads/s", "burst ms p50", "p99", "cpu us/page", "machine"),
        notes=[f"{arm}: {why}" for arm, why in result.get("not_run", {}).items()],
    )  # fmt: skip


@app.command("directory")
def directory(
    tokens: Annotated[int, typer.Option(min=1, help="Tokens per step; each asks for 24 rows of 2 layers.")] = 128,
    cache_rows: Annotated[int, typer.Option(min=4, help="Rows in the cache, both layers together.")] = 1_000_000,
    cache_policy: Annotated[
        CachePolicy, typer.Option(help="How the cache chooses the row that goes.")
    ] = CachePolicy.CLOCK,
    steps: Annotated[int, typer.Option(min=1, help="Steps per hit rate.")] = 600,
    as_json: Json = False,
) -> None:
    """The pass over one step's row ids: hits, repeats, and the list of misses.

    Reading is not part of the figures; it happens on another thread.

    Examples:
      slacktier bench directory
      slacktier bench directory --tokens 8 --steps 2000
      slacktier bench directory --json | jq '.p50_us, .bytes_per_row'
    """
    from slacktier_native import bench_directory

    with working("directory: passes over row ids"):
        result = bench_directory.run(tokens=tokens, cache_rows=cache_rows, cache_policy=cache_policy, steps=steps)
    rows = [(cell["hit_rate"], cell["p50_us"], cell["p99_us"], cell["first_miss_us_p50"]) for cell in result["cells"]]
    print_results(
        "directory", result, directory=Path(), as_json=as_json, rows=rows,
        columns=("hit rate", "pass us p50", "p99", "first miss us p50"),
        notes=[f"{tokens} tokens, {cache_rows:,} cached rows; directory: {result['bytes_per_row']:.1f} B per row"],
    )  # fmt: skip


@app.command("step-path")
def step_path(
    tokens: Annotated[
        int, typer.Option(min=1, max=1024, help="Tokens per step; each asks for 24 rows of 2 layers.")
    ] = 128,
    cache_rows: Annotated[int, typer.Option(min=4, help="Rows in the cache, both layers together.")] = 1_000_000,
    steps: Annotated[int, typer.Option(min=1, max=4000, help="Steps per hit rate.")] = 200,
    gap_ms: Annotated[float, typer.Option(min=0, help="Pause between steps.")] = 5.0,
    readers: Annotated[int, typer.Option(min=1, max=64, help="Threads that copy rows.")] = 4,
    as_json: Json = False,
) -> None:
    """The CPU side of the GPU's step path: from the ids to the rows in their lines.

    Wants a processor per reader and two more.

    Examples:
      slacktier bench step-path
      slacktier bench step-path --tokens 8 --gap-ms 0
      slacktier bench step-path --json | jq '.cells[].first_resolved_us'
    """
    from slacktier_native import bench_step_path

    with working("step-path: steps without a GPU"):
        result = bench_step_path.run(tokens=tokens, cache_rows=cache_rows, steps=steps, gap_ms=gap_ms, readers=readers)
    names = ("first_read_us", "first_resolved_us", "first_ready_us", "ready_us")
    print_results(
        "step-path", result, directory=Path(), as_json=as_json,
        rows=[(cell["hit_rate"], *(cell[name]["p50"] for name in names)) for cell in result["cells"]],
        columns=("hit rate", "first read, us", "layer 1 known", "layer 1 ready", "all ready"),
    )  # fmt: skip


@app.command("predict")
def predict(
    out: Annotated[Path, typer.Option(help="Directory of the tables and the server's log.")] = Path("build/predict"),
    sessions: Annotated[list[int] | None, typer.Option(min=1, max=256, help="Sessions at once; repeat it.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds measured per case.")] = 6.0,
    warm_seconds: Annotated[float, typer.Option(min=0.5, help="Seconds before that, not counted.")] = 4.0,
    size: Annotated[str, typer.Option(help="Rows of both tables together, in bytes.")] = "512M",
    trace: Annotated[Path | None, typer.Option(help="Sessions to replay, as `slacktier demo` takes them.")] = None,
    tp: Annotated[int, typer.Option(min=1, max=20, help="Ranks that rows are striped over; one runs here.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tables and the workload.")] = 1,
    as_json: Json = False,
) -> None:
    """Predicted against measured slowdown on the emulated engine: sessions, cache splits, two emulated disks.

    For each number of sessions the tables are first served from memory, which gives the step, pages per step by cache
    size, and what the machine adds to a read. Then both layers move to an emulated disk with splits of the cache, and
    the window rule's slowdown is compared with the engine's. Exit code 1 if a case is off by more than 10 % and 0.2 ms.

    Examples:
      slacktier bench predict
      slacktier bench predict --sessions 8 --seconds 3
      slacktier bench predict --json | jq '.agreeing, .cases'
    """
    from slacktier_cli.agreement.command import run_and_print

    run_and_print(
        out=out, sessions=tuple(sessions or (8, 32, 128)), seconds=seconds, warm_seconds=warm_seconds, size=size,
        trace=trace, tp=tp, seed=seed, as_json=as_json,
    )  # fmt: skip
