# SPDX-License-Identifier: Apache-2.0
"""docs/page-format.md says what page.py does: offsets, sizes, records per page."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from slacktier.page import PAGE_HEADER, SUPERBLOCK, RowFormat, State, record_bytes_for

TEXT = (Path(__file__).parents[2] / "docs/page-format.md").read_text()
CODES = {"u16": "H", "u32": "I", "u64": "Q", "f32": "f"}


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def documented_fields(title: str) -> list[tuple[int, str]]:
    """(offset, struct code) of each typed row of a section's table, the closing CRC left out."""
    rows = re.findall(r"^\| (\d+) \| (u16|u32|u64|f32|\d+ bytes) \|", section(title), re.MULTILINE)
    fields = [(int(offset), CODES.get(kind) or f"{kind.split()[0]}s") for offset, kind in rows]
    return [field for field in fields if field != (4092, "I")]


def offsets_of(codes: list[str]) -> list[int]:
    return [struct.calcsize("<" + "".join(codes[:index])) for index in range(len(codes))]


def test_superblock_table_has_each_field_at_its_offset() -> None:
    fields = documented_fields("Superblock")
    codes = [code for _, code in fields]
    assert "<" + "".join(codes) == SUPERBLOCK.format
    assert [offset for offset, _ in fields] == offsets_of(codes)


def test_page_table_has_each_header_field_at_its_offset() -> None:
    fields = documented_fields("Data page")
    codes = [code for _, code in fields]
    assert struct.Struct("<" + "".join(codes)).size == PAGE_HEADER.size
    assert [offset for offset, _ in fields] == offsets_of(codes)


def test_record_table_has_the_sizes_of_the_code() -> None:
    rows = re.findall(r"^\| .+ \| (\d+) \+ (\d+) \| (\d+) \| (\d+) \|$", section("Record"), re.MULTILINE)
    assert len(rows) == 3
    for payload, scale, record, per_page in (map(int, row) for row in rows):
        assert record_bytes_for(payload, scale) == record
        assert (4096 - PAGE_HEADER.size) // record == per_page


def test_states_and_row_formats_are_all_named() -> None:
    state_line = re.search(r"state: (.+) \|", TEXT)
    format_line = re.search(r"row format: (.+) \|", TEXT)
    assert state_line is not None
    assert format_line is not None
    assert [int(n) for n in re.findall(r"(\d+) [a-z]", state_line.group(1))] == [state.value for state in State]
    assert [int(n) for n in re.findall(r"(?:^|, )(\d)", format_line.group(1))] == [row.value for row in RowFormat]
