# SPDX-License-Identifier: Apache-2.0
"""The demo's tables: a scaled V4.1 checkpoint, both layers staged to region files, or those of an earlier run.

A region that is complete, of the wanted size and made of the wanted pattern is used as it is: staging marks a region
complete only when it has read back and checked every page. The checkpoint is removed once both layers are staged,
since each row is a function of its id. A run that was killed goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError, ContractError
from slacktier.page import (
    PAGE_BYTES,
    PAGE_HEADER,
    SUPERBLOCK_PAGES,
    State,
    Superblock,
    newest_superblock,
    record_bytes_for,
)
from slacktier.pattern import pattern_seed, pattern_seed_of
from slacktier.region import open_direct, open_region, read_superblock_copies
from slacktier_cli.machine import free_disk_bytes
from slacktier_rowids.models import V41_CONFIG
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.checkpoint_layout import CheckpointLayout, v41_layout
from slacktier_tierd.checkpoint_writer import write_checkpoint
from slacktier_tierd.report import Progress
from slacktier_tierd.sources import SafetensorsSource
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.tables import Family, find_table

_CONFIG: Final = "config.json"
_CHECKPOINT: Final = "checkpoint"
_SPARE_BYTES: Final = 64 << 20  # reports, logs and recorded lookups
_STAGE_THREADS: Final = 4
_ROWS_PER_PAGE: Final = (PAGE_BYTES - PAGE_HEADER.size) // record_bytes_for(256, 8)  # V4.1's rows


@dataclass(frozen=True, slots=True)
class StagedTable:
    """One layer's region, complete; full_rows are the released model's, pattern_seed the layer's."""

    layer_id: int
    path: Path
    rows: int
    full_rows: int
    region_bytes: int
    payload_bytes: int
    scale_bytes: int
    rows_per_page: int
    pattern_seed: int
    was_reused: bool


class TableStore:
    """Tables of one size and seed in one directory."""

    def __init__(self, directory: Path, *, table_bytes: int, seed: int) -> None:
        """Raises ConfigError if no table fits table_bytes."""
        self.directory = directory
        self._seed = seed
        self.layout: CheckpointLayout = v41_layout(None, bytes_max=table_bytes, user_seed=seed)

    @property
    def config_path(self) -> Path:
        """The scaled model's config.json, which decides row ids."""
        return self.directory / _CONFIG

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(self.layout.rows)

    def region_path(self, layer_id: int) -> Path:
        return self.directory / f"layer{layer_id}.region"

    def missing(self) -> list[int]:
        """Layers without a complete region of the wanted rows."""
        return [layer_id for layer_id in self.layer_ids if self._staged(layer_id) is None]

    def bytes_needed(self) -> int:
        """Disk space that prepare() will take beyond what is there."""
        missing = self.missing()
        if not missing:
            return _SPARE_BYTES
        there = sum(path.stat().st_size for path in self.directory.glob("**/*") if path.is_file())
        regions = sum(self._region_bytes(layer_id) for layer_id in self.layer_ids)
        return max(0, self.layout.byte_count + regions - there) + _SPARE_BYTES

    def check_space(self) -> None:
        """Raises ConfigError if the disk is too small; the directory exists."""
        needed, free = self.bytes_needed(), free_disk_bytes(self.directory)
        if needed > free:
            raise ConfigError(
                f"{self.directory}: the tables need {needed / 2**30:.2f} GiB, {free / 2**30:.2f} GiB are free",
                hint="--size makes smaller tables, --out names another disk",
            )

    def remove(self) -> None:
        """Take away what demos put there, and nothing else."""
        for layer_id in self.layer_ids:
            path = self.region_path(layer_id)
            if path.exists():
                _superblock(path)
                path.unlink()
        self.config_path.unlink(missing_ok=True)
        if (self.directory / _CHECKPOINT).exists():
            shutil.rmtree(self.directory / _CHECKPOINT)
        with contextlib.suppress(OSError):  # there are other things in it, or it is not there
            self.directory.rmdir()

    def prepare(self, progress: Progress) -> tuple[StagedTable, ...]:
        """Both layers' regions; makes what is missing.

        raises  ConfigError, TierError or ContractError as staging does
        """
        missing = self.missing()
        if missing:
            self._stage(missing, progress)
        self.config_path.write_text(json.dumps(self.layout.config, indent=1) + "\n", encoding="utf-8")
        return tuple(self._table(layer_id, was_reused=layer_id not in missing) for layer_id in self.layer_ids)

    def _stage(self, layer_ids: Sequence[int], progress: Progress) -> None:
        checkpoint = self._checkpoint(progress)
        opened = open_checkpoint(checkpoint)
        for layer_id in layer_ids:
            source = SafetensorsSource(find_table(opened, layer_id, family=Family.V41))
            try:
                stage(
                    source, [self._target(layer_id)], StageOptions(threads=_STAGE_THREADS), _named(progress, layer_id)
                )
            finally:
                source.close()
        shutil.rmtree(checkpoint)

    def _checkpoint(self, progress: Progress) -> Path:
        """The checkpoint's directory; one of another size or seed is replaced."""
        checkpoint = self.directory / _CHECKPOINT
        if checkpoint.exists() and not self._is_ours(checkpoint):
            shutil.rmtree(checkpoint)
        if not checkpoint.exists():
            write_checkpoint(checkpoint, self.layout, threads=_STAGE_THREADS, progress=progress)
        return checkpoint

    def _is_ours(self, checkpoint: Path) -> bool:
        try:
            opened = open_checkpoint(checkpoint)
            found = [find_table(opened, layer_id, family=Family.V41) for layer_id in self.layer_ids]
        except ConfigError:
            return False
        return all(
            table.row_count == self.layout.rows[table.layer_id]
            and pattern_seed_of(table.superblock()) == pattern_seed(self._seed, table.layer_id)
            for table in found
        )

    def _target(self, layer_id: int) -> Path:
        """Where the layer is staged; an earlier demo's region of other rows is removed first."""
        path = self.region_path(layer_id)
        if path.exists():
            sb = _superblock(path)
            if sb.state is not State.STAGING or not self._is_wanted(sb, layer_id):
                path.unlink()
        return path

    def _is_wanted(self, sb: Superblock, layer_id: int) -> bool:
        return (sb.layer_id, sb.row_count, pattern_seed_of(sb)) == (
            layer_id,
            self.layout.rows[layer_id],
            pattern_seed(self._seed, layer_id),
        )

    def _staged(self, layer_id: int) -> Superblock | None:
        """The superblock of a complete region with the wanted rows, or None."""
        try:
            with open_region([self.region_path(layer_id)]) as region:
                sb = region.superblock
        except (ConfigError, ContractError):
            return None
        return sb if self._is_wanted(sb, layer_id) else None

    def _table(self, layer_id: int, *, was_reused: bool) -> StagedTable:
        sb = self._staged(layer_id)
        if sb is None:
            raise ContractError(f"{self.region_path(layer_id)}: staging ended without a complete region")
        return StagedTable(
            layer_id, self.region_path(layer_id), sb.row_count, full_rows(layer_id), sb.stripe_bytes,
            sb.payload_bytes, sb.scale_bytes, sb.rows_per_page, pattern_seed(self._seed, layer_id), was_reused,
        )  # fmt: skip

    def _region_bytes(self, layer_id: int) -> int:
        pages = -(-self.layout.rows[layer_id] // _ROWS_PER_PAGE)
        return (SUPERBLOCK_PAGES + pages) * PAGE_BYTES


def _superblock(path: Path) -> Superblock:
    """Of a region in any state; raises ConfigError if the file is no region of a test table, which is never removed."""
    fd, _ = open_direct(path, os.O_RDONLY)
    try:
        sb = newest_superblock(read_superblock_copies(fd))
    except ContractError as exc:
        raise ConfigError(f"{path}: not a region of an earlier demo: {exc}", hint="name another --out") from exc
    finally:
        os.close(fd)
    if pattern_seed_of(sb) is None:
        raise ConfigError(f"{path}: a region of real rows, not of an earlier demo", hint="name another --out")
    return sb


def full_rows(layer_id: int) -> int:
    """Rows of the released model's table of this layer."""
    text: Mapping[str, Any] = V41_CONFIG["text_config"]
    return int(dict(zip(text["engram_layer_ids"], text["engram_num_embeddings"], strict=True))[layer_id])


def _named(progress: Progress, layer_id: int) -> Progress:
    def tell(phase: str, done_bytes: int, total_bytes: int) -> None:
        progress(f"{phase} {layer_id}", done_bytes, total_bytes)

    return tell
