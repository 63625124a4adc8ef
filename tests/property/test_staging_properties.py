# SPDX-License-Identifier: Apache-2.0
"""Round trips of random tables, and bytes from outside that must end in an error of ours or in right values."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from region_fixtures import RawTensor, pattern_table, random_bytes, rows_of, v41_tensors, write_safetensors

from slacktier.errors import ConfigError, SlackTierError
from slacktier.page import PAGE_BYTES, decode_superblock, record_bytes_for
from slacktier.region import open_region
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.safetensors_header import read_header
from slacktier_tierd.sources import SafetensorsSource, row_buffers
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.tables import Family, RawWidths, find_table
from slacktier_tierd.verify import verify_region


def _region_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        stage(pattern_table(20), [Path(directory) / "t.region"])
        return (Path(directory) / "t.region").read_bytes()


def _safetensors_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        return write_safetensors(Path(directory) / "whole.safetensors", v41_tensors(1, 20)).read_bytes()


REGION = _region_bytes()
WHOLE = _safetensors_bytes()
HEADER_END = 8 + struct.unpack_from("<Q", WHOLE)[0]


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, int, int]:
    """(rows, payload bytes, scale bytes) of a small table of any shape that fits a page."""
    payload = draw(st.integers(1, 4072))
    scales = draw(st.integers(0, min(64, 4072 - payload)))
    rows_per_page = (PAGE_BYTES - 16) // record_bytes_for(payload, scales)
    return draw(st.integers(1, 12 * rows_per_page)), payload, scales


@settings(max_examples=40)
@given(tables(), st.integers(1, 4), st.integers(0, 9), st.integers(1, 3))
def test_every_row_of_a_random_table_comes_back(
    table: tuple[int, int, int], stripes: int, lead: int, parts: int
) -> None:
    """Method: tensors at random offsets of their file, so that reads begin and end off the page."""
    rows, payload, scales = table
    tensors = {
        "lead": RawTensor("U8", [lead], bytes(lead)),
        "t": RawTensor("U8", [rows, payload], random_bytes(rows * payload, 1)),
    }
    if scales:
        tensors["s"] = RawTensor("U8", [rows, scales], random_bytes(rows * scales, 2))
    with tempfile.TemporaryDirectory() as directory:
        path = write_safetensors(Path(directory) / "x.safetensors", tensors)
        raw = RawWidths("t", payload, "s" if scales else "", scales)
        source = SafetensorsSource(find_table(open_checkpoint(path), 5, family=Family.RAW, raw=raw))
        targets = [Path(directory) / f"{index}.region" for index in range(stripes)]
        report = stage(source, targets, StageOptions(threads=parts))
        source.close()
        weights, scale_data = tensors["t"].data, tensors["s"].data if scales else b""
        assert rows_of(targets) == [
            weights[row * payload : (row + 1) * payload] + scale_data[row * scales : (row + 1) * scales]
            for row in range(rows)
        ]
        assert verify_region(targets).fault_count == 0
        assert stage(SafetensorsSource(source.table), targets).bytes_written == 0
        assert report.bytes_read == rows * (payload + scales)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(1, 9), st.data())
def test_any_range_of_rows_across_segments_is_read_right(sizes: list[int], row_bytes: int, data: st.DataObject) -> None:
    """Method: Qwen's shards, with one more tensor of odd length between them."""
    rows = sum(sizes)
    split = -(-rows // len(sizes))
    counts = [max(0, min(split, rows - index * split)) for index in range(len(sizes))]
    prefix = "layers.0.ple.ngram_embedding"
    tensors: dict[str, RawTensor] = {}
    for index, count in enumerate(counts):
        tensors[f"pad{index}"] = RawTensor("U8", [index], bytes(index))
        content = random_bytes(count * row_bytes, index)
        tensors[f"{prefix}.shard_{index}.weight"] = RawTensor("F8_E4M3", [count, row_bytes], content)
    whole = b"".join(tensor.data for name, tensor in tensors.items() if "shard" in name)
    first = data.draw(st.integers(0, rows - 1))
    count = data.draw(st.integers(1, rows - first))
    with tempfile.TemporaryDirectory() as directory:
        path = write_safetensors(Path(directory) / "x.safetensors", tensors)
        source = SafetensorsSource(find_table(open_checkpoint(path), 0, family=Family.QWEN38))
        weights, scales = source.read(first, count, row_buffers(source.table, count))
        source.close()
    assert scales is None
    assert weights.tobytes() == whole[first * row_bytes : (first + count) * row_bytes]


def check_outcome(raw: bytes) -> None:
    """A header is refused with a ConfigError, or what it says lies inside the file."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.safetensors"
        path.write_bytes(raw)
        try:
            found = read_header(path)
            table = find_table(open_checkpoint(path), 1, family=Family.V41)
        except ConfigError:
            return
        assert all(8 <= entry.begin <= entry.end <= len(raw) for entry in found.tensors.values())
        SafetensorsSource(table).close()


@settings(max_examples=150)
@given(st.binary(max_size=200))
@example(b"")
@example(struct.pack("<Q", 1 << 63))
@example(struct.pack("<Q", 2) + b"{}")
def test_random_bytes_are_no_header(raw: bytes) -> None:
    check_outcome(raw)


@settings(max_examples=250)
@given(st.integers(0, HEADER_END - 1), st.integers(0, 255))
def test_header_with_one_byte_changed_is_refused_or_in_bounds(at: int, value: int) -> None:
    check_outcome(WHOLE[:at] + bytes([value]) + WHOLE[at + 1 :])


@settings(max_examples=100)
@given(st.integers(0, len(WHOLE) - 1))
def test_file_cut_anywhere_is_refused(length: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.safetensors"
        path.write_bytes(WHOLE[:length])
        try:
            read_header(path)
        except ConfigError:
            return
    raise AssertionError(f"a file cut to {length} of {len(WHOLE)} bytes was accepted")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NUMBER = st.integers(-2, 1 << 70) | st.sampled_from([0, 1, 20, 32, 640, 660])
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F8_E4M3", "F8_E8M0", "U8", "F4", "?"]),
        "shape": st.lists(NUMBER, max_size=3),
        "data_offsets": st.lists(NUMBER, min_size=2, max_size=2),
    }
)
NAMES = st.sampled_from(["layers.1.engram.embed.weight", "layers.1.engram.embed.scale", "__metadata__", "x"])


@settings(max_examples=120)
@given(JSON | st.dictionaries(NAMES, ENTRY | JSON, max_size=4), st.integers(0, 700))
def test_header_of_any_json_is_refused_or_in_bounds(header: Any, data_bytes: int) -> None:
    raw = json.dumps(header).encode()
    check_outcome(struct.pack("<Q", len(raw)) + raw + bytes(data_bytes))


@settings(max_examples=100)
@given(st.integers(0, 2 * PAGE_BYTES - 1), st.integers(0, 2 * PAGE_BYTES - 1), st.binary(min_size=1, max_size=16))
def test_superblock_with_bytes_changed_in_both_copies_is_refused_or_the_same(
    first: int, second: int, new: bytes
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.region"
        raw = bytearray(REGION)
        for at in (first, second):
            raw[at : at + len(new)] = new
        path.write_bytes(raw[: len(REGION)])
        try:
            with open_region([path]) as region:
                assert region.superblock == decode_superblock(REGION[:PAGE_BYTES])
        except SlackTierError:
            return
