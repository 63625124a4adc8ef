# SPDX-License-Identifier: Apache-2.0
"""Regions of a large address space in which only some rows' pages are staged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from region_fixtures import pattern_table, read_page

from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, State, decode_row
from slacktier.region import open_region
from slacktier_native.pages import pattern_fill
from slacktier_tierd.partial import runs_of, stage_partial
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.synthetic import synthetic_source
from slacktier_tierd.verify import verify_region

ROWS = 384_006_168
IDS = np.array([0, 14, 15, 29, 7_000_000, 15_360_000, 200_000_000, ROWS - 1, 14])
PAGES = [0, 1, 466_666, 1_024_000, 13_333_333, 25_600_411]


def make(tmp_path: Path) -> Path:
    stage_partial(synthetic_source("v41", 1, user_seed=5), tmp_path / "sparse.region", IDS)
    return tmp_path / "sparse.region"


def test_only_the_rows_pages_take_space_and_each_row_reads_back(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert path.stat().st_size == (2 + 25_600_412) * PAGE_BYTES
    assert path.stat().st_blocks * 512 <= 64 * PAGE_BYTES
    with open_region([path], allow_partial=True) as region, path.open("rb") as file:
        sb = region.superblock
        assert (sb.state, sb.staged_pages, sb.row_count) == (State.PARTIAL, len(PAGES), ROWS)
        for row_id in map(int, IDS):
            file.seek(sb.page_offset(row_id // 15))
            weights, scales = np.empty(256, np.uint8), np.empty(8, np.uint8)
            pattern_fill(5 << 16 | 1, row_id, 1, 256, 8, weights, scales)
            assert decode_row(sb, file.read(PAGE_BYTES), row_id) == weights.tobytes() + scales.tobytes()


def test_row_that_was_not_staged_is_an_error(tmp_path: Path) -> None:
    source = pattern_table(1000)
    stage_partial(source, tmp_path / "t.region", np.array([500]))
    with open_region([tmp_path / "t.region"], allow_partial=True) as region:
        page = read_page(region.superblock, [(tmp_path / "t.region").read_bytes()], 3)
        with pytest.raises(ContractError, match="page 3: header"):
            decode_row(region.superblock, page, 45)


def test_readers_refuse_it_without_the_flag(tmp_path: Path) -> None:
    path = make(tmp_path)
    with pytest.raises(ConfigError, match="it is not served"):
        open_region([path])
    with pytest.raises(ConfigError, match="it is not served"):
        verify_region([path])


def test_verify_checks_staged_pages_and_holes(tmp_path: Path) -> None:
    source, path = pattern_table(50_000), tmp_path / "t.region"
    stage_partial(source, path, np.array([3, 20_000, 20_001, 49_999]))
    report = verify_region([path], allow_partial=True, check_pattern=True)
    assert (report.fault_count, report.pages_checked, report.state) == (0, 3, "partial")
    staged, hole = (2 + 20_000 // 15) * PAGE_BYTES, (2 + 700) * PAGE_BYTES
    for offset, message in ((staged + 100, "page 1333"), (hole + 9, "page 700"), (hole + 4000, "page 700")):
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(bytes([whole[offset] ^ 4]))
        assert message in verify_region([path], allow_partial=True).faults[0]
        path.write_bytes(whole)
    with path.open("r+b") as file:
        file.seek(staged)
        file.write(bytes(PAGE_BYTES))
    assert verify_region([path], allow_partial=True).faults == ["2 pages are staged, its superblock says 3"]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.array([-1, 5]), "-1 to 5, expected 0 to 999"),
        (np.array([1000]), "1000 to 1000, expected 0 to 999"),
        (np.array([1.5]), "expected a 1-D array of integers"),
        (np.array([[1]]), "expected a 1-D array of integers"),
        (np.array([], np.int64), "expected a 1-D array of integers"),
    ],
)
def test_ids_outside_the_table_are_refused_and_leave_nothing(tmp_path: Path, ids: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stage_partial(pattern_table(1000), tmp_path / "t.region", ids)
    assert list(tmp_path.iterdir()) == []


def test_existing_path_is_refused_and_staging_over_a_partial_region_needs_restage(tmp_path: Path) -> None:
    path = tmp_path / "t.region"
    stage_partial(pattern_table(1000), path, np.array([5]))
    with pytest.raises(ConfigError, match="exists"):
        stage_partial(pattern_table(1000), path, np.array([6]))
    with pytest.raises(ConfigError, match="partial region"):
        stage(pattern_table(1000), [path])
    assert stage(pattern_table(1000), [path], StageOptions(restage=True)).epoch == 2
    assert verify_region([path], check_pattern=True).fault_count == 0


def test_killed_run_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    def kill(phase: str, done_bytes: int, total_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stage_partial(pattern_table(1000), tmp_path / "t.region", np.array([5]), progress=kill)
    assert list(tmp_path.iterdir()) == []


def test_runs_of_consecutive_pages() -> None:
    assert runs_of(np.array([1, 2, 3, 7, 9, 10])) == [(1, 3), (7, 1), (9, 2)]
    assert runs_of(np.array([4])) == [(4, 1)]
