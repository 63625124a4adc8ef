# SPDX-License-Identifier: Apache-2.0
"""Seen-set files: what was written comes back, and what is damaged or of another table does not."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier_rowids.seen_set import SeenLayer, SeenSet


def flags_of(row_count: int, rows: list[int]) -> SeenLayer:
    flags = np.zeros(row_count, np.bool_)
    flags[rows] = True
    return SeenLayer.of_flags(3, flags)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "rows.seen"
    first = SeenLayer.of_flags(1, np.arange(100) % 7 == 0)
    SeenSet((first, flags_of(130, [0, 8, 129]))).write(path)
    return path


def test_rows_come_back_layer_by_layer(written: Path) -> None:
    seen = SeenSet.load(written)
    assert np.flatnonzero(seen.layer(1, 100).contains(np.arange(100))).tolist() == list(range(0, 100, 7))
    assert seen.layer(3, 130).contains(np.array([[0, 1], [8, 129]])).tolist() == [[True, False], [True, True]]
    assert [layer.seen_count for layer in seen.layers] == [15, 3]


def test_bytes_are_as_documented(written: Path) -> None:
    content = written.read_bytes()
    assert content[:16] == b"SLSEEN\0\0" + struct.pack("<II", 1, 2)
    assert struct.unpack("<IIQQ", content[40:64]) == (3, 0, 130, 3)
    assert content[64 + 16 :][:24] == bytes([1, 1]) + bytes(14) + bytes([2]) + bytes(7)
    assert content[-4:] == struct.pack("<I", zlib.crc32(content[:-4]))
    assert len(content) == 64 + 16 + 24 + 4


@settings(max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_contains_answers_as_the_flags_did(flags: list[bool]) -> None:
    layer = SeenLayer.of_flags(0, np.array(flags))
    assert layer.contains(np.arange(len(flags), dtype=np.uint32)).tolist() == flags
    assert layer.seen_count == sum(flags)


def test_row_or_layer_of_another_table_is_refused(written: Path) -> None:
    seen = SeenSet.load(written)
    with pytest.raises(ConfigError, match="no layer 2, it has 1, 3"):
        seen.layer(2, 100)
    with pytest.raises(ConfigError, match="layer 3 has 130 rows, the table 131"):
        seen.layer(3, 131)
    with pytest.raises(ConfigError, match="a row outside the 130 of layer 3"):
        seen.layer(3, 130).contains(np.array([130]))


def test_every_damaged_byte_is_noticed(written: Path, tmp_path: Path) -> None:
    content = written.read_bytes()
    damaged = tmp_path / "damaged.seen"
    for at in range(len(content)):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        with pytest.raises(SlackTierError, match=r"damaged\.seen"):
            SeenSet.load(damaged)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (12, struct.pack("<I", 9), "9 layers in"),
        (24, struct.pack("<Q", 2**60), "entry 0 .* does not fit"),
        (40, struct.pack("<I", 1), "entry 1 .* does not fit"),
        (56, struct.pack("<Q", 4), "layer 3 has 3 rows, its entry says 4"),
        (24, struct.pack("<Q", 60), "bytes, its layers end at|has .* rows, its entry says"),
    ],
)
def test_contents_that_contradict_each_other_are_refused(
    at: int, value: bytes, message: str, written: Path, tmp_path: Path
) -> None:
    content = bytearray(written.read_bytes()[:-4])
    content[at : at + len(value)] = value
    path = tmp_path / "odd.seen"
    path.write_bytes(bytes(content) + struct.pack("<I", zlib.crc32(content)))
    with pytest.raises(ContractError, match=message):
        SeenSet.load(path)


def test_other_files_and_versions_are_told_apart(written: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        SeenSet.load(tmp_path / "none.seen")
    text = tmp_path / "text.seen"
    text.write_text("a text that is no seen-set at all")
    with pytest.raises(ConfigError, match="not a seen-set"):
        SeenSet.load(text)
    content = bytearray(written.read_bytes())
    content[8] = 2
    text.write_bytes(content)
    with pytest.raises(ConfigError, match="format version 2, expected 1"):
        SeenSet.load(text)


def test_failed_write_leaves_the_old_file_and_nothing_else(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written.read_bytes()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(zlib, "crc32", full)
    with pytest.raises(SlackTierError, match=r"rows\.seen: No space left"):
        SeenSet((flags_of(64, [1]),)).write(written)
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == [written.name]
