# SPDX-License-Identifier: Apache-2.0
"""What is looked at before a table is served: its shape, its checkpoint, rows from all over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from slacktier.errors import ConfigError, ContractError
from slacktier.page import RowFormat, Superblock
from slacktier_engine.cpu_step import begin_when_free
from slacktier_engine.step_path import TableShape
from slacktier_native.core import LookupCore

_SPREAD_ROWS: Final = 64  # per column


def check_region(table: TableShape, sb: Superblock, label: str) -> None:
    """Raises ContractError unless the region holds rows of this table's count and form."""
    formats = (RowFormat.FP8_E4M3, RowFormat.BF16)
    same_format = sb.row_format is table.row_format or {sb.row_format, table.row_format} <= set(formats)
    payload = table.dim * (2 if sb.row_format is RowFormat.BF16 else 1)
    if sb.row_count != table.row_count or sb.payload_bytes != payload or not same_format:
        raise ContractError(
            f"{label}: {sb.row_count} rows of {sb.payload_bytes} bytes ({sb.row_format.name}), the model's layer "
            f"{table.layer_id} has {table.row_count} of {payload} ({table.row_format.name})",
            hint="stage the table of the checkpoint that this server loads",
        )


def spread_ids(table: TableShape, core: LookupCore) -> torch.Tensor:
    """[n, C] row ids from the first to the last row, each rank's own among them."""
    count = min(_SPREAD_ROWS * table.columns, core.lookups_max // table.columns * table.columns)
    ids = torch.linspace(0, table.row_count - 1, count, dtype=torch.float64).round().to(torch.int64)
    return ids.clamp_(0, table.row_count - 1).view(-1, table.columns)


def look_up_uncached(core: LookupCore, tables: Sequence[TableShape]) -> None:
    """One step of random rows of each table; raises what it fails with."""
    begin_when_free(core, [np.random.default_rng().integers(0, table.row_count, 2 * table.columns) for table in tables])
    try:
        for index in range(len(tables)):
            core.wait(index)
    finally:
        core.end()


def checkpoint_directory(path: str) -> Path:
    """The checkpoint's directory: the path, or the local snapshot of a hub repository."""
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(path, local_files_only=True))
    except Exception as exc:
        raise ConfigError(
            f"{path}: neither a directory nor a repository that is here, so rows cannot be checked",
            hint='name the checkpoint: check: {checkpoint: DIR}, or check: {checkpoint: "none"}',
        ) from exc
