# SPDX-License-Identifier: Apache-2.0
"""`slacktier measure`: what the window rule needs to know about a device, measured on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from slacktier.delay import SHIPPED
from slacktier.errors import ConfigError, SlackTierError
from slacktier.read_model_file import ReadModelFile, ReadSpec
from slacktier.region import open_region
from slacktier.tiers import Tier
from slacktier.window_fit import ReadFit, ReadSample, fit_read_model
from slacktier.window_model import ReadModel
from slacktier_cli.machine import describe_machine

R2_POOR = 0.9

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, help="Measure what the window rule needs."
)


@app.callback()
def _root() -> None:
    """Measure what the window rule needs to know about a device."""


@app.command("reads")
def reads(
    region: Annotated[list[Path], typer.Argument(help="A complete region: a file or block device per stripe.")],
    tier: Annotated[str, typer.Option(help="nvme: read the file or device; dram: load it into memory first.")] = "nvme",
    emulate: Annotated[
        str, typer.Option(metavar="MODEL", help=f"Memory held back by a delay model: {', '.join(SHIPPED)}.")
    ] = "",
    pages: Annotated[
        list[int] | None, typer.Option(min=1, help="Pages of a layer in a step; repeat it for several counts.")
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Ranks that read at the same time.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.5, max=600, help="How long to measure.")] = 20.0,
    seed: Annotated[int, typer.Option(min=0, help="Draws the pages and the order of the loads.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Write the model here, for `slacktier plan`.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fit T = a + b * own and earlier pages + c * later pages to reads of a region under load.

    Each step reads random pages as two layers would, one submitted behind the other, through the same code as serving.
    Ranks read at the same time from one disk; times are the slowest rank's. Other work on the device shows in the fit.

    Examples:
      slacktier measure reads /mnt/nvme0/layer1.region --ranks 4 --out nvme0.yaml
      slacktier measure reads /dev/nvme1n1 /dev/nvme2n1 --seconds 30
      slacktier measure reads layer1.region --tier dram
      slacktier measure reads layer1.region --emulate paper-nvme-shared --json | jq .read
    """
    from slacktier_native import measure_reads

    spec, layer_id = _source(region, tier, emulate)
    if out is not None and out.exists():
        raise ConfigError(f"{out} exists", hint="move it away or name another file")
    with _bar(seconds) as progress:
        task = progress.add_task("reading", total=1.0)
        samples, backend = measure_reads.measure(
            spec, layer_id, pages=tuple(pages or measure_reads.PAGES), ranks=ranks, seconds=seconds, seed=seed,
            told=lambda share: progress.update(task, completed=share),
        )  # fmt: skip
    fit = fit_read_model(samples, ranks_per_unit=ranks)
    machine = describe_machine(region[0].parent)
    found = ReadModelFile(
        tier=spec.tier, target=spec.label, backend=backend, read=_rounded(fit.model), r2=round(fit.r2, 4),
        samples=len(samples), machine=str(machine),
    )  # fmt: skip
    if out is not None:
        _write(out, found)
    if as_json:
        print(json.dumps(_as_json(found, fit, samples)))
    else:
        _show(found, fit, samples, out)


def _source(region: list[Path], tier: str, emulate: str) -> tuple[Any, int]:
    """What to read from, and the layer it holds."""
    from slacktier_native.core import SourceSpec

    if tier not in (Tier.NVME, Tier.DRAM):
        raise ConfigError(f"--tier {tier}: expected nvme or dram")
    if emulate and emulate not in SHIPPED:
        raise ConfigError(f"--emulate {emulate}: expected one of {', '.join(SHIPPED)}")
    with open_region(region) as opened:
        layer_id = opened.superblock.layer_id
    if emulate:
        return SourceSpec(Tier.EMULATED, tuple(region), device=f"measure-{emulate}", delay=SHIPPED[emulate]), layer_id
    return SourceSpec(Tier(tier), tuple(region)), layer_id


def _rounded(model: ReadModel) -> ReadSpec:
    """To a nanosecond: more digits are noise."""
    return ReadSpec(**{name: round(getattr(model, name), 3) for name in ReadSpec.model_fields})


def _bar(seconds: float) -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn(f"of {seconds:g} s"))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _write(path: Path, found: ReadModelFile) -> None:
    text = "# Written by `slacktier measure reads`.\n" + yaml.safe_dump(found.model_dump(mode="json"), sort_keys=False)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise SlackTierError(f"{path}: {exc.strerror}") from exc


def _as_json(found: ReadModelFile, fit: ReadFit, samples: list[ReadSample]) -> dict[str, Any]:
    rows = [
        {"pages_own": s.pages_own, "pages_other": s.pages_other, "read_us": s.read_us, "residual_us": residual}
        for s, residual in zip(samples, fit.residuals_us, strict=True)
    ]
    return {**found.model_dump(mode="json"), "measured": rows}


def _show(found: ReadModelFile, fit: ReadFit, samples: list[ReadSample], out: Path | None) -> None:
    console, read = Console(highlight=False), found.read
    console.print(found.machine, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for column in ("own pages", "later pages", "read us", "model us", "off by"):
        table.add_column(column, justify="right")
    for sample, residual in zip(samples, fit.residuals_us, strict=True):
        table.add_row(
            f"{sample.pages_own:.0f}", f"{sample.pages_other:.0f}", f"{sample.read_us:.0f}",
            f"{sample.read_us - residual:.0f}", f"{residual:+.0f}",
        )  # fmt: skip
    console.print(table)
    console.print(
        Text(
            f"{found.target} ({found.backend}): T = {read.a_us:.0f} us + {read.b_us:.3g} us * own and earlier pages "
            f"+ {read.c_us:.3g} us * later pages, {read.ranks_per_unit:g} rank(s) reading; "
            f"RMSE {read.rmse_us:.0f} us, R2 {found.r2:.3f}, {read.pages_min:.0f} to {read.pages_max:.0f} pages"
        ),
        soft_wrap=True,
    )
    if found.r2 < R2_POOR:
        console.print(
            f"mind: R2 below {R2_POOR}: this device's reads do not follow the model, or other work disturbed them"
        )
    if out is not None:
        console.print(f"wrote {out}", soft_wrap=True)
