# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench decode`: added time of a decode step's lookups on a GPU. Imports torch only when it runs."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import numpy.typing as npt
import typer

from slacktier.errors import ConfigError
from slacktier_cli.traces import Trace

if TYPE_CHECKING:
    from slacktier_engine.decode_bench.cells import CellSpec
    from slacktier_engine.decode_bench.run import DecodeBench, Settings
    from slacktier_engine.decode_bench.workload import TokenStream

PARTS: Final = (
    "exact", "captures", "stalls", "control", "memory", "rows-160", "rows-320", "replays", "probe", "extend", "cells",
)  # fmt: skip
TOGETHER: Final = "ranks"  # alone in a run: its processes each have a table


@dataclass(frozen=True)
class _Inputs:
    """What a process of the bench opens; the traces by name."""

    settings: Settings
    token_map: Path | None
    traces: dict[str, Path]

    def stream(self, name: str) -> TokenStream:
        from slacktier_engine.decode_bench.workload import TokenStream

        trace = Trace.load(self.traces[name])
        return TokenStream.of(trace.tokens, trace.session_offsets, trace.decode_mask)

    def open(self, gpu: int = 0, rank: int = 0, world: int = 1) -> DecodeBench:
        from slacktier_engine.decode_bench.opening import open_bench

        return open_bench(self.settings, _token_map(self.token_map), gpu=gpu, rank=rank, world=world)


def open_rank(inputs: _Inputs, trace: str, gpus: int, rank: int, world: int) -> tuple[DecodeBench, TokenStream]:
    """A rank's bench on its own GPU, or on the one that there is."""
    return inputs.open(rank % gpus, rank, world), inputs.stream(trace)


def decode(
    trace: Annotated[list[Path], typer.Option("--trace", help="Trace .npz; cells name it without its ending.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(help="TRACE:TOKENS:TP:SOURCE+SOURCE[:W1_MS:W14_MS:STEP_MS][@OPTION+...]; default: the published."),
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help=f"What to run: {', '.join(PARTS)}; or {TOGETHER}. Default: all but that.")
    ] = None,
    region: Annotated[
        list[str] | None, typer.Option(help="zram, disk or tcp=DIRECTORY, or =DEVICE,DEVICE: where 2 regions go.")
    ] = None,
    sglang_kernels: Annotated[
        Path | None, typer.Option(help="Directory of sglang's engram kernels; default: the installed sglang's.")
    ] = None,
    token_map: Annotated[
        Path | None, typer.Option(help="Compressed token map .npy [V] int32; default: made from V4's tokenizer.")
    ] = None,
    cache_rows: Annotated[int, typer.Option(min=0, help="Row cache of one rank, both layers together.")] = 1_000_000,
    table_gib: Annotated[int, typer.Option(min=1, help="Pinned table of the stock arm; ours stands beside it.")] = 32,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks, in which arms take turns.")] = 4,
    block_steps: Annotated[int, typer.Option(min=2, help="Timed steps per block.")] = 60,
    warm_tokens: Annotated[int, typer.Option(min=0, help="Tokens looked up before measuring.")] = 400_000,
    check_steps: Annotated[int, typer.Option(min=1, help="Decode steps compared bit for bit, per source.")] = 40,
    replays: Annotated[int, typer.Option(min=1000, help="Of the part of that name.")] = 100_000,
    readers: Annotated[int, typer.Option(min=1, max=64, help="Reader threads per rank.")] = 4,
    ranks: Annotated[int, typer.Option(min=2, max=8, help="Processes of the part of that name.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write the report here, anew after each part.")] = None,
    budget_s: Annotated[float, typer.Option(min=1, help="Begin no part or cell after so long.")] = 3600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Added time of a decode step's lookups on a GPU, against the engine's own gather from pinned host memory.

    One rank of a V4.1-like step in a captured graph: the engine's hash kernel, then 40 layers of GEMMs sized for the
    windows asked for. Arms take turns: no lookups, the stock gather (sorted and not), and the step path over a
    source. Sources: dram; rdma-delay, nvme-delay-1, nvme-delay-4 (the paper's models over DRAM); zram, disk, tcp.
    Part exact compares rows bit for bit with the stock kernel's, under a cache that evicts in every step. Part ranks
    starts a process per rank, with NCCL where there is a GPU for each.

    Examples:
      slacktier bench decode --trace agent.npz --trace chat.npz --json --out decode.json
      slacktier bench decode --trace agent.npz --part cells --cell agent:128:1:dram+rdma-delay --table-gib 32
      slacktier bench decode --trace agent.npz --part cells --cell agent:128:4:nvme-delay-1@hit=0.85+pages=600 --json
      slacktier bench decode --trace agent.npz --part ranks --ranks 2 --region tcp=/dev/shm --json
    """
    from slacktier_engine.decode_bench.cells import DEFAULT_CELLS, REGION_SOURCES, parse_cell

    specs = [parse_cell(text) for text in cell or DEFAULT_CELLS]
    parts = _parts(part)
    places = _places(region, REGION_SOURCES)
    names = {path.stem: path for path in trace}
    for spec in specs:
        if spec.trace not in names and (cell or spec.trace == "agent"):
            raise ConfigError(
                f"cell of trace {spec.trace!r}: not given with --trace", hint=f"given: {', '.join(names)}"
            )
    try:
        from slacktier_engine.decode_bench.opening import gpu_count
        from slacktier_engine.decode_bench.run import Settings
    except ModuleNotFoundError as exc:
        raise ConfigError(f"bench decode needs torch and triton: {exc}") from exc
    gpus = gpu_count()
    settings = Settings(
        sglang_kernels, cache_rows, table_gib << 30, blocks, block_steps, warm_tokens, readers=readers, regions=places
    )
    inputs = _Inputs(settings, token_map, names)
    until_s = time.monotonic() + budget_s
    if parts == (TOGETHER,):
        report = _run_ranks(inputs, specs[0].trace, ranks, gpus, places, budget_s)
    else:
        report = _run_parts(inputs, parts, specs, check_steps, replays, until_s, out)
    _write(out, report)
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    if report["mismatched_rows"]:
        raise typer.Exit(1)


def _parts(asked: Sequence[str] | None) -> tuple[str, ...]:
    for name in asked or ():
        if name not in (*PARTS, TOGETHER):
            raise ConfigError(f"part {name!r}: expected one of {', '.join((*PARTS, TOGETHER))}")
    if asked and TOGETHER in asked and len(asked) > 1:
        raise ConfigError(f"part {TOGETHER} runs alone", hint="its processes each have a table of their own")
    return tuple(name for name in (*PARTS, TOGETHER) if name in (asked or PARTS))


def _places(asked: Sequence[str] | None, names: Sequence[str]) -> dict[str, str]:
    places = {}
    for text in asked or ():
        name, found, place = text.partition("=")
        if name not in names or not found or not place:
            raise ConfigError(f"region {text!r}: expected {', '.join(names)}, each =DIRECTORY or =DEVICE,DEVICE")
        places[name] = place
    return places


def _run_ranks(
    inputs: _Inputs, trace: str, world: int, gpus: int, places: dict[str, str], timeout_s: float
) -> dict[str, Any]:
    from slacktier_engine.decode_bench.ranks import RankPlan, run

    opener = functools.partial(open_rank, inputs, trace, min(gpus, world))
    plan = RankPlan(world, gpus >= world, opener, shared_folder=places.get("tcp", ""))
    if not plan.nccl:  # sums of host tensors: fewer of them
        plan = replace(plan, exact_chunks=1, exact_steps=20)
    found = run(plan, timeout_s)
    wrong = sum(check["mismatched_rows"] for check in found["exact"])
    return {"machine": found["machine"], "ranks": found, "cells": found.get("cells", []), "mismatched_rows": wrong,
            "rows_checked": sum(check["rows_checked"] for check in found["exact"]), "first_read_us": None}  # fmt: skip


def _run_parts(
    inputs: _Inputs, parts: Sequence[str], specs: Sequence[CellSpec], check_steps: int, replay_count: int,
    until_s: float, out: Path | None,
) -> dict[str, Any]:  # fmt: skip
    from slacktier_engine.decode_bench.run import summary

    bench = inputs.open()
    streams = {name: inputs.stream(name) for name in inputs.traces}
    sections: dict[str, Any] = {"cells": [], "variants": [], "exact": [], "extend": []}
    left_out: list[str] = []
    for part in parts:
        for name, where, work in _work(bench, part, specs, streams, check_steps, replay_count):
            if time.monotonic() > until_s:
                left_out.append(name)
                continue
            found = work()
            if isinstance(sections.get(where), list):
                sections[where].append(found)
            else:
                sections[where] = found
            _write(out, summary(bench) | sections | {"left_out": left_out})
    report = summary(bench) | sections | {"left_out": left_out}
    bench.close()
    return report


def _work(
    bench: DecodeBench, part: str, specs: Sequence[CellSpec], streams: dict[str, TokenStream], check_steps: int,
    replay_count: int,
) -> Iterator[tuple[str, str, Callable[[], Any]]]:  # fmt: skip
    """(name, section of the report, what to do) of a part's pieces."""
    from slacktier_engine.decode_bench import checks, extend, narrow_rows, probe_check
    from slacktier_engine.decode_bench.cells import REGION_SOURCES

    first = next(iter(streams.values()))
    places = bench.settings.regions
    here = ["dram", "rdma-delay", "nvme-delay-1", "nvme-delay-4", *(name for name in REGION_SOURCES if name in places)]
    section = part.replace("-", "_")
    match part:
        case "exact" | "extend":
            for source in here:
                if part == "exact":
                    check = functools.partial(bench.check_with_tiny_cache, first, source, tokens=256, steps=check_steps)
                else:
                    check = functools.partial(extend.measure, bench, first, source)
                yield f"{part} {source}", section, check
        case "cells":
            for spec in specs:
                for source in spec.sources if spec.trace in streams else ():
                    if source not in REGION_SOURCES or source in places:
                        run = functools.partial(bench.run_cell, spec, source, streams[spec.trace])
                        where = "variants" if spec.options else "cells"
                        yield f"{spec.trace}:{spec.tokens}:{spec.tp}:{source}@{spec.options}", where, run
        case "rows-160" | "rows-320":
            yield part, section, functools.partial(narrow_rows.measure, bench, int(part[-3:]))
        case "probe":
            yield part, section, functools.partial(probe_check.probe, bench)
            long = functools.partial(probe_check.probe, bench, window_ms=(0.27, 9.35), step_ms=29.4, steps=16)
            yield "probe of the paper's step", "probe_long", long
        case "replays":
            yield part, section, functools.partial(checks.replays, bench, replay_count)
        case _:
            check = getattr(checks, part)
            yield part, section, functools.partial(checks.run_check, part, bench, check)


def _write(out: Path | None, report: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _token_map(path: Path | None) -> npt.NDArray[np.int32]:
    if path is None:
        from slacktier_rowids.tokenmap import load_token_map

        return load_token_map()
    try:
        found: npt.NDArray[np.int32] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"token map {path}: {exc}") from exc
    return found


def _print(report: dict[str, Any]) -> None:
    print(f"{report['machine']}: {report['rows_checked']} rows compared, {report['mismatched_rows']} differ")
    print(f"first read after {report['first_read_us']} us")
    for c in [*report["cells"], *report.get("variants", [])]:
        added, stock = c["added_us"], c["stock_added_us"]
        print(
            f"{c['trace']} {c['source']:13} tokens {c['tokens']:4} tp {c['tp']} hit {c['hit_rate']:.3f} "
            f"added {added['p50']:8.1f} us (p99 {added['p99']:.1f}), stock "
            f"{stock['p50']:8.1f} (p99 {stock['p99']:.1f}), step {c['step_ms']:.2f} ms {c.get('options', '')}"
        )
