# SPDX-License-Identifier: Apache-2.0
"""`slacktier stage`: a checkpoint's table to a region on files or block devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from slacktier.errors import ConfigError
from slacktier.page import RowFormat
from slacktier_cli.progress import byte_progress
from slacktier_cli.sizes import size_text
from slacktier_tierd.checkpoint import Checkpoint, open_checkpoint
from slacktier_tierd.partial import RowIds, stage_partial
from slacktier_tierd.report import StageReport
from slacktier_tierd.sources import RowSource, SafetensorsSource
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.synthetic import RowShape, synthetic_source
from slacktier_tierd.tables import Family, RawWidths, detect_family, find_table, table_layers


def _only_layer(checkpoint: Checkpoint, family: Family) -> int:
    layers = table_layers(checkpoint, family)
    if len(layers) != 1:
        raise ConfigError(f"{checkpoint.path}: which layer? it has tables of {layers}", hint="--layer names one")
    return layers[0]


def _row_ids(path: Path) -> RowIds:
    try:
        with path.open("rb") as file:
            found: RowIds = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}") from exc
    except (ValueError, EOFError) as exc:
        raise ConfigError(f"{path}: not an .npy array of row ids", hint="numpy.save writes one") from exc
    return found


def _print(report: StageReport, targets: list[Path]) -> None:
    where = ", ".join(map(str, targets))
    if report.outcome == "unchanged":
        print(f"{where}: layer {report.layer_id} complete, as the source is; wrote {report.bytes_written} bytes")
    else:
        since = f", resumed at page {report.pages_resumed_at}" if report.pages_resumed_at else ""
        state = "partial" if report.outcome == "partial" else "complete"
        print(
            f"{where}: layer {report.layer_id} {state}, {report.pages_staged} pages staged{since}, epoch {report.epoch}"
        )
    for name, count in report.phases.items():
        print(f"  {name:<7} {size_text(count.bytes):>11} in {count.seconds:6.1f} s, {count.gib_s:.2f} GiB/s")
    if not (report.direct_source and report.direct_target):
        side = "source" if report.direct_target else "target" if report.direct_source else "source and target"
        print(f"  the {side}'s file system refuses O_DIRECT: the page cache was used")


def command(
    checkpoint: Annotated[Path | None, typer.Argument(help="Checkpoint directory, or one safetensors file.")] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="File or block device; repeat it for stripes, in order."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=0, help="Layer of the table; needed where there are several.")
    ] = None,
    family: Annotated[Family | None, typer.Option(help="Tensor names; found out by default.")] = None,
    tensor: Annotated[str, typer.Option(help="Stage this tensor, whatever the model.")] = "",
    payload_bytes: Annotated[int, typer.Option(min=0, help="Bytes per row of --tensor, or of --synthetic raw.")] = 0,
    scale_tensor: Annotated[str, typer.Option(help="Tensor with the rows' scales, for --tensor.")] = "",
    scale_bytes: Annotated[int, typer.Option(min=0, help="Scale bytes per row.")] = 0,
    synthetic: Annotated[
        str, typer.Option(help="No checkpoint: rows of a pattern; v41, qwen3.8, qwen3.8-bf16, raw.")
    ] = "",
    rows: Annotated[int, typer.Option(min=0, help="Rows of --synthetic; default: the released model's.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Pattern seed of --synthetic.")] = 0,
    model: Annotated[str, typer.Option(help="Model name in the superblock; default: the checkpoint's own.")] = "",
    revision: Annotated[str, typer.Option(help="Model revision in the superblock.")] = "",
    may_format: Annotated[bool, typer.Option("--format", help="Write over a file or device that is not ours.")] = False,
    restage: Annotated[
        bool, typer.Option("--restage", help="Replace the region that is there, with the next epoch.")
    ] = False,
    partial_rows: Annotated[
        Path | None, typer.Option(help="For tests: only the pages of these row ids (.npy), sparse.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, max=20, help="Chunks of 4 MiB in work at once.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Stage one table, verify it, and only then mark it complete.

    A run that was killed goes on where it stopped when it is started again. A second run over a complete region reads
    the source, compares digests and writes nothing. Nothing is written to what is not ours, unless --format.

    Examples:
      slacktier stage /data/v41-1g --layer 1 --target /mnt/nvme0/layer1.region
      slacktier stage /data/v41 --layer 14 --target /dev/nvme1n1 --target /dev/nvme2n1 --format
      slacktier stage /data/qwen --target layer1.region --json
      slacktier stage model.safetensors --tensor my.table --payload-bytes 512 --layer 3 --target t.region
      slacktier stage --synthetic v41 --layer 1 --partial-rows rows.npy --target sparse.region
    """
    if not target:
        raise ConfigError("where to? --target names a file or a block device")
    if "" in target:
        raise ConfigError("--target '': is empty", hint="is a variable of the shell not set?")
    targets = [Path(text) for text in target]
    if synthetic:
        shape = RowShape(payload_bytes, scale_bytes, RowFormat.RAW) if synthetic == "raw" and payload_bytes else None
        if checkpoint is not None or layer is None:
            raise ConfigError("--synthetic takes --layer and no checkpoint")
        source: RowSource = synthetic_source(
            synthetic, layer, row_count=rows, shape=shape, user_seed=seed, model=model, revision=revision
        )  # fmt: skip
    else:
        widths = RawWidths(tensor, payload_bytes, scale_tensor, scale_bytes) if tensor else None
        source = _checkpoint_source(checkpoint, layer, Family.RAW if tensor else family, widths, model, revision)
    try:
        with byte_progress() as progress:
            if partial_rows is not None:
                if len(targets) != 1 or may_format or restage:
                    raise ConfigError("--partial-rows makes one new file; neither stripes, --format nor --restage")
                report = stage_partial(source, targets[0], _row_ids(partial_rows), threads=threads, progress=progress)
            else:
                options = StageOptions(may_format=may_format, restage=restage, threads=threads)
                report = stage(source, targets, options, progress)
    finally:
        source.close()
    if as_json:
        print(json.dumps(report.as_json()))
    else:
        _print(report, targets)


def _checkpoint_source(
    path: Path | None, layer: int | None, family: Family | None, widths: RawWidths | None, model: str, revision: str
) -> SafetensorsSource:
    if path is None:
        raise ConfigError("stage what? name a checkpoint, or --synthetic")
    checkpoint = open_checkpoint(path)
    family = family or detect_family(checkpoint)
    if layer is None:
        layer = 0 if family is Family.RAW else _only_layer(checkpoint, family)
    return SafetensorsSource(find_table(checkpoint, layer, family=family, raw=widths, model=model, revision=revision))
