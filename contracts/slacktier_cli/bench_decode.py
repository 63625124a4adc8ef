# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench decode`: added time of a decode step's lookups on a GPU. Imports torch only when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from slacktier.errors import ConfigError
from slacktier_cli.traces import Trace


def decode(
    trace: Annotated[list[Path], typer.Option("--trace", help="Trace .npz; cells name it without its ending.")],
    cell: Annotated[
        list[str] | None,
        typer.Option(help="TRACE:TOKENS:TP:SOURCE+SOURCE[:W1_MS:W14_MS:STEP_MS]; default: the published cells."),
    ] = None,
    sglang_kernels: Annotated[
        Path | None, typer.Option(help="Directory of sglang's engram kernels; default: the installed sglang's.")
    ] = None,
    token_map: Annotated[
        Path | None, typer.Option(help="Compressed token map .npy [V] int32; default: made from V4's tokenizer.")
    ] = None,
    cache_rows: Annotated[int, typer.Option(min=0, help="Row cache of one rank, both layers together.")] = 1_000_000,
    table_gib: Annotated[int, typer.Option(min=1, help="Pinned table of the stock arm; ours stands beside it.")] = 32,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks per arm, interleaved.")] = 4,
    block_steps: Annotated[int, typer.Option(min=2, help="Timed steps per block.")] = 60,
    warm_tokens: Annotated[int, typer.Option(min=0, help="Tokens looked up before measuring.")] = 400_000,
    check_steps: Annotated[int, typer.Option(min=0, help="Decode steps compared bit for bit, per source.")] = 120,
    readers: Annotated[int, typer.Option(min=1, max=64, help="Reader threads per rank.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Added time of a decode step's lookups on a GPU, against the engine's own gather from pinned host memory.

    One rank of a V4.1-like step in a captured graph: the engine's hash kernel, then 40 layers of GEMMs sized for the
    windows asked for. Arms alternate in blocks: no lookups, the stock gather (sorted and not), and the step path over
    each source. Sources: dram, rdma-delay, nvme-delay-1, nvme-delay-4 (delays: the paper's models over DRAM).
    First, rows are compared bit for bit with the stock kernel's, under a cache that evicts in every step.

    Examples:
      slacktier bench decode --trace agent.npz --trace chat.npz --json
      slacktier bench decode --trace agent.npz --cell agent:128:1:dram+rdma-delay --table-gib 32
      slacktier bench decode --trace agent.npz --cell agent:8:4:rdma-delay:0.10:3.5:11 --sglang-kernels DIR --json
    """
    from slacktier_engine.decode_bench.cells import DEFAULT_CELLS, parse_cell

    specs = [parse_cell(text) for text in cell or DEFAULT_CELLS]
    names = {path.stem: path for path in trace}
    for spec in specs:
        if spec.trace not in names:
            raise ConfigError(
                f"cell of trace {spec.trace!r}: not given with --trace", hint=f"given: {', '.join(names)}"
            )
    try:
        from slacktier_engine.decode_bench.run import DecodeBench, Settings
        from slacktier_engine.decode_bench.workload import TokenStream
    except ModuleNotFoundError as exc:
        raise ConfigError(f"bench decode needs torch and triton: {exc}") from exc
    from slacktier_rowids.engram import EngramHasher, EngramLayout
    from slacktier_rowids.models import V41_CONFIG

    codes = _token_map(token_map)
    hasher = EngramHasher(EngramLayout.from_config(V41_CONFIG), codes)
    traces = {name: Trace.load(path) for name, path in names.items()}
    streams = {n: TokenStream.of(t.tokens, t.session_offsets, t.decode_mask) for n, t in traces.items()}
    settings = Settings(sglang_kernels, cache_rows, table_gib << 30, blocks, block_steps, warm_tokens, readers=readers)
    bench = DecodeBench(hasher, codes, settings)
    first = streams[specs[0].trace]
    sources = sorted({source for spec in specs for source in spec.sources})
    checks = [bench.check_with_tiny_cache(first, s, tokens=256, steps=check_steps) for s in sources if check_steps]
    cells = [result for spec in specs for result in bench.run_cell(spec, streams[spec.trace])]
    report = bench.report(cells, checks)
    bench.close()
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    if report["mismatched_rows"]:
        raise typer.Exit(1)


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
    for c in report["cells"]:
        added, stock = c["added_us"], c["stock_added_us"]
        print(
            f"{c['trace']} {c['source']:13} tokens {c['tokens']:4} tp {c['tp']} hit {c['hit_rate']:.3f} "
            f"added {added['p50']:8.1f} us (p99 {added['p99']:.1f}), stock "
            f"{stock['p50']:8.1f} (p99 {stock['p99']:.1f}), step {c['step_ms']:.2f} ms"
        )
