# SPDX-License-Identifier: Apache-2.0
"""Disks that are too small: one clear line before anything is written, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from region_fixtures import V41_TINY, pattern_table

from slacktier.errors import ConfigError
from slacktier_tierd.checkpoint_layout import v41_layout
from slacktier_tierd.checkpoint_writer import write_checkpoint
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.verify import verify_region

MIB = 1 << 20
SMALL, LARGE = 10_000, 200_000  # rows: 2.7 and 52 MiB
MakeDisk = Callable[..., Path]


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_new_file_that_does_not_fit_is_refused_and_gone(make_disk: MakeDisk, kind: str) -> None:
    disk = make_disk(kind, 32 * MIB)
    free = os.statvfs(disk).f_bavail
    with pytest.raises(ConfigError, match=r"No space left on device: the region needs [\d.]+ GiB, [\d.]+ GiB are free"):
        stage(pattern_table(LARGE), [disk / "t.region"])
    assert [path.name for path in disk.iterdir() if path.name != "lost+found"] == []
    assert os.statvfs(disk).f_bavail == free


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
def test_region_that_cannot_grow_is_as_it_was(make_disk: MakeDisk, kind: str) -> None:
    target = make_disk(kind, 32 * MIB) / "t.region"
    stage(pattern_table(SMALL), [target])
    before = target.read_bytes()
    with pytest.raises(ConfigError, match="No space left"):
        stage(pattern_table(LARGE), [target], StageOptions(restage=True))
    assert target.read_bytes() == before
    assert verify_region([target], check_pattern=True).fault_count == 0


def test_one_full_disk_of_two_leaves_both_stripes_as_they_were(tmp_path: Path, make_disk: MakeDisk) -> None:
    full, old = make_disk("ext4", 16 * MIB) / "1.region", tmp_path / "0.region"
    stage(pattern_table(SMALL), [old, full])
    before = old.read_bytes(), full.read_bytes()
    with pytest.raises(ConfigError, match=f"{full}: No space left"):
        stage(pattern_table(LARGE), [old, full], StageOptions(restage=True))
    assert (old.read_bytes(), full.read_bytes()) == before
    assert verify_region([old, full], check_pattern=True).fault_count == 0
    with pytest.raises(ConfigError, match="No space left"):
        stage(pattern_table(LARGE), [tmp_path / "new.region", full.with_name("new.region")])
    assert not (tmp_path / "new.region").exists()
    assert not list(tmp_path.glob(".*"))


def test_checkpoint_that_does_not_fit_is_refused_and_gone(make_disk: MakeDisk) -> None:
    disk = make_disk("tmpfs", 1 * MIB)
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GiB, [\d.]+ GiB are free"):
        write_checkpoint(disk / "ck", v41_layout(V41_TINY, rows_max=60_000))
    assert list(disk.iterdir()) == []


def test_file_system_without_direct_io_is_staged_through_the_page_cache_and_says_so(make_disk: MakeDisk) -> None:
    target = make_disk("ramfs", 64 * MIB) / "t.region"
    report = stage(pattern_table(50_000), [target])
    assert (report.outcome, report.direct_target) == ("staged", False)
    verified = verify_region([target], check_pattern=True)
    assert (verified.fault_count, verified.direct) == (0, False)
    assert stage(pattern_table(50_000), [target]).outcome == "unchanged"
