# SPDX-License-Identifier: Apache-2.0
"""What `verify` finds: flipped bits, older copies, lost pages, rows of another table, digests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from region_fixtures import pattern_table

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, decode_superblock, encode_superblock
from slacktier_tierd.scan import FAULTS_SHOWN_MAX
from slacktier_tierd.staging import stage
from slacktier_tierd.verify import VerifyReport, verify_region


def make(tmp_path: Path, rows: int = 100, name: str = "t.region", seed: int = 3) -> Path:
    stage(pattern_table(rows, seed=seed), [tmp_path / name])
    return tmp_path / name


def patch(path: Path, offset: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(new)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    patch(path, offset, bytes([path.read_bytes()[offset] ^ 1 << bit]))


def faults_of(path: Path) -> VerifyReport:
    report = verify_region([path])
    assert report.fault_count == len(report.faults)
    return report


def test_whole_region_has_no_fault(tmp_path: Path) -> None:
    report = verify_region([make(tmp_path)], check_pattern=True)
    assert (report.fault_count, report.faults, report.pages_checked) == (0, [], 7)
    assert (report.state, report.bytes_verified, report.pattern_checked) == ("complete", 7 * PAGE_BYTES, True)


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("at", [0, 12, 50, 112, 150, 500, 4095])
def test_flipped_bit_in_either_superblock_copy_is_found(tmp_path: Path, copy: int, at: int) -> None:
    path = make(tmp_path)
    flip(path, copy * PAGE_BYTES + at)
    (fault,) = faults_of(path).faults
    assert fault.startswith(f"{path}: superblock copy {copy}: ")


def test_two_valid_copies_that_differ_are_a_fault(tmp_path: Path) -> None:
    path = make(tmp_path)
    sb = decode_superblock(path.read_bytes()[:PAGE_BYTES])
    patch(path, 0, encode_superblock(replace(sb, sequence=sb.sequence + 1)))
    assert faults_of(path).faults == [f"{path}: the two superblock copies differ, though each is valid"]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (8, "page 2 row 30: page header is not this page's"),
        (16 + 272 * 4 + 100, "page 2 row 34: row checksum does not match"),
        (16 + 272 * 4 + 260, "page 2 row 34: row checksum does not match"),
        (16 + 272 * 4 + 265, "page 2 row 34: row tag is another row's"),
        (16 + 272 * 4 + 269, "page 2 row 34: row checksum does not match"),
    ],
)
def test_flipped_bit_in_a_page_names_page_and_row(tmp_path: Path, at: int, message: str) -> None:
    path = make(tmp_path)
    flip(path, (2 + 2) * PAGE_BYTES + at)
    assert faults_of(path).faults == [f"layer 1 {message}"]


def test_flipped_bit_in_unused_records_of_the_last_page_is_found(tmp_path: Path) -> None:
    path = make(tmp_path)
    flip(path, path.stat().st_size - 1)
    (fault,) = faults_of(path).faults
    assert "page 6" in fault
    assert "padding or unused bytes are not zero" in fault


def test_each_bad_page_is_counted_and_the_first_are_listed(tmp_path: Path) -> None:
    path = make(tmp_path, rows=1000)
    for page in range(40):
        flip(path, (2 + page) * PAGE_BYTES + 50)
    report = verify_region([path])
    assert (report.fault_count, len(report.faults)) == (40, FAULTS_SHOWN_MAX)
    assert "page 0 " in report.faults[0]


def test_page_lost_or_swapped_with_another_is_found(tmp_path: Path) -> None:
    path = make(tmp_path)
    raw = path.read_bytes()
    patch(path, 3 * PAGE_BYTES, raw[5 * PAGE_BYTES : 6 * PAGE_BYTES])
    patch(path, 5 * PAGE_BYTES, bytes(PAGE_BYTES))
    assert ["page 1 " in fault or "page 3 " in fault for fault in faults_of(path).faults] == [True, True]


def test_page_of_another_table_with_the_same_ids_is_found(tmp_path: Path) -> None:
    path = make(tmp_path)
    stage(pattern_table(100, seed=3, model="other"), [tmp_path / "other.region"])
    patch(path, 4 * PAGE_BYTES, (tmp_path / "other.region").read_bytes()[4 * PAGE_BYTES : 5 * PAGE_BYTES])
    assert faults_of(path).faults == ["layer 1 page 2 row 30: row checksum does not match"]


def test_rows_that_are_not_the_superblocks_are_found_by_their_digest(tmp_path: Path) -> None:
    """Two regions of one table staged from other bytes: each page passes its own checks."""
    path, other = make(tmp_path, seed=3), make(tmp_path, name="o.region", seed=4)
    patch(path, 4 * PAGE_BYTES, other.read_bytes()[4 * PAGE_BYTES : 5 * PAGE_BYTES])
    (fault,) = faults_of(path).faults
    assert fault.startswith("digest of its rows ")


def test_pattern_check_names_the_row(tmp_path: Path) -> None:
    path, other = make(tmp_path, seed=3), make(tmp_path, name="o.region", seed=4)
    patch(path, 4 * PAGE_BYTES, other.read_bytes()[4 * PAGE_BYTES : 5 * PAGE_BYTES])
    report = verify_region([path], check_pattern=True)
    assert report.faults[0] == "layer 1 row 30: not the pattern's bytes"
    assert verify_region([other], check_pattern=True, seed=5).fault_count == 100


def test_pattern_check_of_a_table_without_a_pattern_is_refused(tmp_path: Path) -> None:
    source = pattern_table(100)
    source.table = replace(source.table, source="safetensors")
    stage(source, [tmp_path / "t.region"])
    with pytest.raises(ConfigError, match="names no pattern"):
        verify_region([tmp_path / "t.region"], check_pattern=True)
