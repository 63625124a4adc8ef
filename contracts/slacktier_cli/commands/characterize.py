# SPDX-License-Identifier: Apache-2.0
"""`slacktier characterize`: miss curves and reuse figures of a trace, by simulation."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console

from slacktier.errors import ConfigError
from slacktier_cli.characterize.arguments import parse_numbers, parse_policies, parse_rows
from slacktier_cli.characterize.corpus import Corpus
from slacktier_cli.characterize.lookups import rows_used
from slacktier_cli.characterize.plots import figure_class, write_figures
from slacktier_cli.characterize.progress import Stopwatch
from slacktier_cli.characterize.report import as_json, largest_difference, sections, trace_summary
from slacktier_cli.characterize.results import LayerStudy
from slacktier_cli.characterize.sampling import parse_rate
from slacktier_cli.characterize.study import Options, Study
from slacktier_cli.machine import Machine, describe_machine
from slacktier_cli.progress import Bars
from slacktier_cli.traces import Trace
from slacktier_rowids.config import section
from slacktier_rowids.models import load_config, load_hasher
from slacktier_rowids.seen_set import SeenSet

IDLE_STEPS_MAX: Final = 1_000_000
TP_MAX: Final = 1024
THREADS_MAX: Final = 1024


def command(
    trace_path: Annotated[Path, typer.Argument(metavar="TRACE", help="Sessions of token ids, an .npz file.")],
    layers: Annotated[str, typer.Option(help="Layer ids; all of the model's unless given.")] = "",
    sessions: Annotated[str, typer.Option(help="Sessions open at a time.")] = "64",
    rows: Annotated[
        str, typer.Option(help="Cache rows of a layer, all ranks together.")
    ] = "62500,250K,500K,1M,2M,5M,10M,19.2M",
    policy: Annotated[
        str, typer.Option(help="Of lru, clock, clock16, s3fifo, s3fifo16, static; or all.")
    ] = "lru,clock,s3fifo,static",
    source: Annotated[list[str] | None, typer.Option(help="Only sessions of this source; may be repeated.")] = None,
    model: Annotated[str, typer.Option(help="v41, qwen3.8, or a config.json.")] = "v41",
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json of a config.json's model.")] = None,
    rate: Annotated[str, typer.Option(help="Share of the rows that is simulated.")] = "1/8",
    exact: Annotated[
        bool, typer.Option("--exact", help="Simulate every row, and say how far off the sample is.")
    ] = False,
    idle_steps: Annotated[float, typer.Option(help="Mean pause of a session between its turns, in steps.")] = 0.0,
    fit: Annotated[Path | None, typer.Option(help="Learn the hot set and the seen-set from this trace.")] = None,
    seen: Annotated[Path | None, typer.Option(help="Judge lossy skipping by this seen-set.")] = None,
    seen_set: Annotated[Path | None, typer.Option(metavar="OUT", help="Write the rows that TRACE uses.")] = None,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks that share the pages.")] = 1,
    seed: Annotated[int, typer.Option(help="Of shuffles, idle gaps and the sample.")] = 1,
    threads: Annotated[int, typer.Option(help="Simulations at a time; all cores unless given.")] = 0,
    plot: Annotated[Path | None, typer.Option(metavar="DIR", help="Write figures there.")] = None,
    plot_format: Annotated[str, typer.Option(help="svg or png.")] = "svg",
    as_json_option: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure miss curves from a trace.

    Sessions are shuffled and interleaved as a server runs them: in every step
    each open session prefills what is pending and decodes one token. Prefill
    warms the cache; hit rates and pages per step are of decode lookups.
    Assistant turns are decode, all others prefill. The static hot set, rows
    never seen and lossy skipping are learned from one half of the sessions
    (or --fit, --seen) and measured on the other.

    One hash head of eight is simulated, in an eighth of the cache (--rate).
    --exact simulates everything and says how far off the sample was.

    Examples:
      slacktier characterize agent.npz
      slacktier characterize agent.npz --sessions 64,256 --layers 14
      slacktier characterize agent.npz --rows 250K,1M,4M --policy clock16,s3fifo16
      slacktier characterize agent.npz --exact --json > agent.json
      slacktier characterize chat.npz --source wildchat --plot figures --tp 4
      slacktier characterize week1.npz --seen-set week1.seen
      slacktier characterize week2.npz --seen week1.seen
    """
    options = Options(
        layers=parse_numbers(layers, "--layers", least=0) if layers else (),
        sessions=parse_numbers(sessions, "--sessions", least=1),
        rows=parse_rows(rows),
        policies=parse_policies(policy),
        rate=parse_rate(rate),
        idle_steps=idle_steps,
        seed=seed,
        threads=threads or len(os.sched_getaffinity(0)),
    )
    _check(options, tp, plot, plot_format, seen_set)
    watch, bars = Stopwatch(), Bars()
    with watch.phase("load"):
        trace = Trace.load(trace_path)
        trace = trace.of_sources(source) if source else trace
        corpus = Corpus.build(trace, Trace.load(fit) if fit else None, seed)
        config = load_config(model)
        hasher = load_hasher(config, tokenizer=tokenizer, name=model)
        hasher.vocabulary.check(corpus.trace.tokens.astype(np.int64), f"trace {trace_path}: token")
        seen_rows = SeenSet.load(seen) if seen else None
    study = Study(corpus, hasher, options, bars, watch, seen_rows)
    studies, error = _run(study, exact)
    if seen_set:
        with watch.phase("seen-set"):
            rows_used(trace, hasher, options.layers, bars).write(seen_set)
    figures = write_figures(studies, plot, plot_format, trace_path.name) if plot else []
    found = {
        "trace": trace_summary(trace_path, trace),
        "model": {"name": model, "vocab_size": {**section(config, "text_config"), **config}.get("vocab_size")},
        "fit": {"trace": str(fit) if fit else None, "sessions": len(corpus.fit), "held_out": len(corpus.held_out)},
        "sessions_are_shuffled_with": seed,
        "idle_steps": idle_steps,
        **as_json(studies, tp),
        "sampling_error": error,
        "seconds": watch.seconds,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": describe_machine(trace_path.parent).as_dict(),
        "files": [str(path) for path in [*figures, *([seen_set] if seen_set else [])]],
    }
    if as_json_option:
        print(json.dumps(found))
    else:
        _print_report(found, studies, tp)


def _check(options: Options, tp: int, plot: Path | None, plot_format: str, seen_set: Path | None) -> None:
    """What can be refused before the trace is read."""
    if not 0 <= options.idle_steps <= IDLE_STEPS_MAX:
        raise ConfigError(f"--idle-steps {options.idle_steps}: expected 0 to {IDLE_STEPS_MAX:,}")
    if not 1 <= tp <= TP_MAX:
        raise ConfigError(f"--tp {tp}: expected 1 to {TP_MAX}")
    if len({rows // tp for rows in options.rows} | {0}) <= len(options.rows):
        raise ConfigError(f"--tp {tp}: two cache sizes are the same for one of so many ranks")
    if options.seed < 0 or options.seed >= 2**32:
        raise ConfigError(f"--seed {options.seed}: expected 0 to {2**32 - 1}")
    if not 1 <= options.threads <= THREADS_MAX:
        raise ConfigError(f"--threads {options.threads}: expected 1 to {THREADS_MAX}")
    if plot_format not in ("svg", "png"):
        raise ConfigError(f"--plot-format {plot_format}: expected svg or png")
    if plot:
        figure_class()
        if plot.exists() and not plot.is_dir():
            raise ConfigError(f"--plot {plot}: not a directory")
    if seen_set and (seen_set.is_dir() or not seen_set.parent.is_dir()):
        raise ConfigError(f"--seen-set {seen_set}: expected a file in a directory that exists")


def _run(study: Study, exact: bool) -> tuple[list[LayerStudy], dict[str, Any] | None]:
    """The studies, and with exact how far the sample was off and how long both took."""
    start = time.perf_counter()
    sampled = study.run()
    if not exact or study.options.rate == 1:
        return sampled, None
    middle = time.perf_counter()
    whole = replace(study, options=replace(study.options, rate=Fraction(1))).run()
    took = {"sampled_s": middle - start, "exact_s": time.perf_counter() - middle}
    return whole, largest_difference(sampled, whole) | took


def _print_report(found: dict[str, Any], studies: Sequence[LayerStudy], tp: int) -> None:
    console = Console(highlight=False)
    trace, sampling = found["trace"], found["sampling"]
    console.print(
        f"{trace['path']}: {trace['sessions']:,} sessions, {trace['tokens']:,} tokens, "
        f"{trace['decode_tokens']:,} of them decoded; {', '.join(trace['sources'])}",
        soft_wrap=True,
    )
    if sampling["rate"] < 1:
        heads = f"{sampling['heads']} of {sampling['of_heads']} hash heads"
        pages = "" if sampling["share_of_pages"] == 1 else f", {sampling['share_of_pages']:.3g} of their pages"
        console.print(f"simulated: {heads}{pages}, in {sampling['rate']:.4g} of the cache", soft_wrap=True)
    for part in sections(studies, tp):
        console.print(f"\n[bold]{part.title}[/]", soft_wrap=True)
        console.print(part.table)
        if part.caption:
            console.print(part.caption, soft_wrap=True)
    console.print()
    if error := found["sampling_error"]:
        console.print(
            f"sampling at rate {error['sampling']['rate']:g} was off by at most {error['points']:.3f} points "
            f"(layer {error['layer_id']}, {error['sessions']} sessions, {error['policy']}, {error['rows']:,} rows) "
            f"and took {error['sampled_s']:.1f} s; everything took {error['exact_s']:.1f} s",
            soft_wrap=True,
        )
    for note in _notes(found):
        console.print(f"note: {note}", soft_wrap=True)
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found["seconds"].items())
    console.print(f"{spent}; peak memory {found['peak_rss_bytes'] / 2**30:.2f} GiB", soft_wrap=True)
    console.print(str(Machine(**found["machine"])), soft_wrap=True)
    for path in found["files"]:
        console.print(f"wrote {path}", soft_wrap=True)


def _notes(found: dict[str, Any]) -> list[str]:
    trace, model = found["trace"], found["model"]
    if model["vocab_size"] in (None, trace["vocab_size"]):
        return []
    return [
        f"the trace's token ids are of a vocabulary of {trace['vocab_size']:,}, the model's is of "
        f"{model['vocab_size']:,}: the figures show how such text would hash, not this model's own traffic"
    ]
