# SPDX-License-Identifier: Apache-2.0
"""`slacktier make-checkpoint`: a checkpoint in a real format and of any size, whose every row can be checked."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from slacktier.errors import ConfigError
from slacktier_cli.progress import byte_progress
from slacktier_cli.sizes import parse_size, size_text
from slacktier_rowids.models import load_config
from slacktier_tierd.checkpoint_layout import CheckpointLayout, qwen_layout, v41_layout
from slacktier_tierd.checkpoint_writer import write_checkpoint
from slacktier_tierd.tables import Family


class WrittenFamily(StrEnum):
    """Of the families that staging knows, those with a layout of their own."""

    V41 = Family.V41.value
    QWEN38 = Family.QWEN38.value


class Dtype(StrEnum):
    """Of the payload; V4.1's tables are FP8 only."""

    FP8 = "fp8"
    BF16 = "bf16"


def _layout(
    family: WrittenFamily, rows: int, size: str, config: Path | None, layers: list[int], dtype: Dtype, seed: int
) -> CheckpointLayout:
    fields = None if config is None else load_config(str(config))
    bytes_max = parse_size(size) if size else 0
    if config is None and not rows and not bytes_max:
        raise ConfigError("how large? give --rows, --size or --config", hint="--size 1G fits most disks")
    if family is WrittenFamily.V41:
        if dtype is not Dtype.FP8:
            raise ConfigError(f"--dtype {dtype}: V4.1 tables are fp8")
        return v41_layout(fields, rows_max=rows, bytes_max=bytes_max, layers=layers, user_seed=seed)
    if layers:
        raise ConfigError("--layer: Qwen's layers are its config's ple_layer_ids; give --config")
    return qwen_layout(fields, dtype=dtype.value, rows_max=rows, bytes_max=bytes_max, user_seed=seed)


def command(
    directory: Annotated[Path, typer.Argument(help="Directory to make; it must not exist.")],
    family: Annotated[WrittenFamily, typer.Option(help="Whose tensor names, dtypes and config.")] = WrittenFamily.V41,
    rows: Annotated[int, typer.Option(min=0, help="At most this many rows per layer.")] = 0,
    size: Annotated[str, typer.Option(help="At most this many bytes of tables in all, such as 1G.")] = "",
    config: Annotated[
        Path | None, typer.Option(help="A model's config.json; with --rows or --size it is scaled.")
    ] = None,
    layer: Annotated[
        list[int] | None, typer.Option(help="V4.1 layer with a table; repeat it. Default: the config's.")
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Payload: fp8, or bf16 for qwen3.8.")] = Dtype.FP8,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the rows; it is stored in the checkpoint.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write a checkpoint whose every row is a function of its id, so that any row can be checked without a copy.

    The row counts follow from hash bucket sizes as in the real model, so they come close to what is asked for.

    Examples:
      slacktier make-checkpoint /data/v41-1g --size 1G
      slacktier make-checkpoint /data/v41 --rows 1000000 --layer 1
      slacktier make-checkpoint /data/qwen --family qwen3.8 --dtype bf16 --size 500M --seed 7
      slacktier make-checkpoint /data/tiny --config tiny-config.json
    """
    layout = _layout(family, rows, size, config, layer or [], dtype, seed)
    started = time.monotonic()
    with byte_progress() as progress:
        write_checkpoint(directory, layout, progress=progress)
    seconds = time.monotonic() - started
    if as_json:
        found = {
            "path": str(directory), "family": family.value, "seed": seed, "bytes": layout.byte_count,
            "rows": {str(layer_id): count for layer_id, count in layout.rows.items()}, "seconds": round(seconds, 3),
        }  # fmt: skip
        print(json.dumps(found))
        return
    for layer_id, count in layout.rows.items():
        print(f"layer {layer_id}: {count} rows")
    print(f"{directory}: {size_text(layout.byte_count)} in {seconds:.1f} s, seed {seed}")
