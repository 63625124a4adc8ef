# SPDX-License-Identifier: Apache-2.0
"""`slacktier measure`: what the window rule needs to know about a device, measured on it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

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
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier.window_fit import ReadFit, ReadSample, fit_read_model
from slacktier.window_model import ReadModel
from slacktier_cli.machine import describe_machine
from slacktier_cli.outputs import check_output

if TYPE_CHECKING:
    from slacktier_native.measure_reads import Reader
    from slacktier_native.sources import RemoteSpec, SourceSpec

R2_POOR = 0.9

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Measure what the window rule needs to know about a device."""


@app.command("reads")
def reads(
    target: Annotated[
        list[str],
        typer.Argument(
            help="A complete region, a file or block device per stripe; or tcp:// or rdma://HOST:PORT/TABLE/LAYER."
        ),
    ],
    tier: Annotated[str, typer.Option(help="nvme: read the file or device; dram: load it into memory first.")] = "nvme",
    emulate: Annotated[
        str, typer.Option(metavar="MODEL", help=f"Memory held back by a delay model: {', '.join(SHIPPED)}.")
    ] = "",
    token: Annotated[Path | None, typer.Option(help="Token file of the row server or memory node.")] = None,
    unit: Annotated[str, typer.Option(help="With rdma://: a READ brings one record, or a whole page.")] = "record",
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
    TABLE is the table's uuid, which `slacktier verify --json` prints.
    Ranks read at the same time from one disk; times are the slowest rank's. Other work on the device shows in the fit.

    Examples:
      slacktier measure reads /mnt/nvme0/layer1.region --ranks 4 --out nvme0.yaml
      slacktier measure reads /dev/nvme1n1 /dev/nvme2n1 --seconds 30
      slacktier measure reads layer1.region --tier dram
      slacktier measure reads tcp://node2:7400/8a5c7a7e-0f0e-4a52-9e64-0a5cf1a3b1de/14 --token token --out node2.yaml
      slacktier measure reads rdma://node2:7500/8a5c7a7e-0f0e-4a52-9e64-0a5cf1a3b1de/1 --token token --unit page
      slacktier measure reads layer1.region --emulate paper-nvme-shared --json | jq .read
    """
    from slacktier_native import measure_reads

    if out is not None and out.exists():
        raise ConfigError(f"{out} exists", hint="move it away or name another file")
    if out is not None:
        check_output("--out", out)
    counts = tuple(pages or measure_reads.PAGES)
    tier_read, open_reader = _opener(target, tier, emulate, token, unit, sum(sorted(counts)[-2:]))
    with _bar(seconds) as progress:
        task = progress.add_task("reading", total=1.0)
        samples, reader = measure_reads.measure(
            open_reader, pages=counts, ranks=ranks, seconds=seconds, seed=seed,
            told=lambda share: progress.update(task, completed=share),
        )  # fmt: skip
    fit = fit_read_model(samples, ranks_per_unit=ranks)
    machine = describe_machine(Path() if tier_read in REMOTE_TIERS else Path(target[0]).parent)
    found = ReadModelFile(
        tier=tier_read, target=reader.label, backend=reader.backend, read=_rounded(fit.model), r2=round(fit.r2, 4),
        samples=len(samples), machine=str(machine),
    )  # fmt: skip
    if out is not None:
        _write(out, found)
    if as_json:
        print(json.dumps(_as_json(found, fit, samples)))
    else:
        _show(found, fit, samples, out)


def _opener(
    target: list[str], tier: str, emulate: str, token: Path | None, unit: str, pages_max: int
) -> tuple[Tier, Callable[[], Reader]]:
    """The tier that is read, and what opens one rank's reader."""
    from slacktier_native.measure_reads import CoreReader

    if tier not in (Tier.NVME, Tier.DRAM):
        raise ConfigError(f"--tier {tier}: expected nvme or dram")
    if emulate and emulate not in SHIPPED:
        raise ConfigError(f"--emulate {emulate}: expected one of {', '.join(SHIPPED)}")
    if target[0].startswith(("tcp:", "rdma:")):
        if token is None or len(target) > 1:
            raise ConfigError(f"{target[0]}: expected one address and --token FILE")
        remote = _remote(target[0], token, unit)
        return remote.tier, lambda: CoreReader(remote, remote.layer_id, pages_max=pages_max)
    if token is not None:
        raise ConfigError("--token is for tcp:// and rdma:// addresses")
    paths = [Path(text) for text in target]
    with open_region(paths) as opened:
        layer_id = opened.superblock.layer_id
    spec = _spec(paths, Tier(tier), emulate)
    return spec.tier, lambda: CoreReader(spec, layer_id, pages_max=pages_max)


def _spec(paths: list[Path], tier: Tier, emulate: str) -> SourceSpec:
    from slacktier_native.sources import SourceSpec

    if emulate:
        return SourceSpec(Tier.EMULATED, tuple(paths), device=f"measure-{emulate}", delay=SHIPPED[emulate])
    return SourceSpec(tier, tuple(paths))


def _remote(address: str, token: Path, unit: str) -> RemoteSpec:
    from slacktier_native.rdma import RdmaSettings, RdmaSpec, ReadUnit
    from slacktier_native.row_link import RowsSpec

    if unit not in list(ReadUnit):
        raise ConfigError(f"--unit {unit}: expected {' or '.join(ReadUnit)}")
    scheme, host, port, table, layer_id = _address(address)
    if scheme is Tier.TCP:
        return RowsSpec(host, port, token, layer_id, table)
    return RdmaSpec(host, port, token, layer_id, table, RdmaSettings(unit=ReadUnit(unit)))


def _address(text: str) -> tuple[Tier, str, int, uuid.UUID, int]:
    """tcp:// or rdma://HOST:PORT/TABLE/LAYER; raises ConfigError for anything else."""
    scheme = Tier(text.partition(":")[0])
    try:
        parts = urlsplit(text)
        table, layer = parts.path.strip("/").split("/")
        if parts.hostname and parts.port and layer.isascii() and layer.isdigit():
            return scheme, parts.hostname, parts.port, uuid.UUID(table), int(layer)
    except ValueError as exc:
        raise ConfigError(f"{text}: expected {scheme}://HOST:PORT/TABLE/LAYER: {exc}") from exc
    raise ConfigError(f"{text}: expected {scheme}://HOST:PORT/TABLE/LAYER")


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
