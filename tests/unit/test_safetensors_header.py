# SPDX-License-Identifier: Apache-2.0
"""Headers as they come from outside: truncated, pointers, hostile."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from region_fixtures import RawTensor, v41_tensors, write_safetensors

from slacktier.errors import ConfigError
from slacktier_tierd.safetensors_header import HEADER_BYTES_MAX, read_header

LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 5368709120\n"
)


def write_header(path: Path, header: Any, data: bytes = b"") -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def test_offsets_lead_to_each_tensors_bytes(tmp_path: Path) -> None:
    tensors = v41_tensors(1, 100)
    file = read_header(write_safetensors(tmp_path / "a.safetensors", tensors, {"format": "pt"}))
    raw = file.path.read_bytes()
    assert {name: raw[entry.begin : entry.end] for name, entry in file.tensors.items()} == {
        name: tensor.data for name, tensor in tensors.items()
    }
    assert file.metadata == {"format": "pt"}


def test_shard_cut_by_one_byte_names_file_actual_and_expected_size(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "model-00047.safetensors", v41_tensors(1, 100))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ConfigError) as caught:
        read_header(path)
    message = str(caught.value)
    assert "model-00047.safetensors: truncated" in message
    assert f"{len(whole) - 1} bytes, expected {len(whole)}" in message


def test_shard_cut_inside_its_header_is_truncated_too(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", v41_tensors(1, 100))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ConfigError, match=r"truncated: 40 bytes, its header alone ends at \d+"):
        read_header(path)


def test_lfs_pointer_is_named_with_its_size_and_the_real_one(tmp_path: Path) -> None:
    path = tmp_path / "model-00001.safetensors"
    path.write_bytes(LFS_POINTER)
    with pytest.raises(
        ConfigError, match=rf"LFS pointer of {len(LFS_POINTER)} bytes.*stands for 5368709120 bytes"
    ) as caught:
        read_header(path)
    assert "git lfs pull" in caught.value.hint


@pytest.mark.parametrize("size", [0, 7])
def test_file_shorter_than_its_length_field(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(bytes(size))
    with pytest.raises(ConfigError, match=f"{size} bytes, too short"):
        read_header(path)


def test_header_longer_than_any_real_one_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", HEADER_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="header of 33554433 bytes, expected at most"):
        read_header(path)


def entry(shape: Any = (4,), offsets: Any = (0, 4), dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD_HEADERS: dict[str, Any] = {
    "not JSON": b"{",
    "not UTF-8": b'{"\xff": 1}',
    "no object": [],
    "nested too deep": b"[" * 100_000,
    "tensor twice": b'{"a": 1, "a": 2}',
    "field twice": b'{"a": {"dtype": "U8", "dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}',
    "metadata not strings": {"__metadata__": {"a": 1}, "a": entry()},
    "entry no object": {"a": 4},
    "field missing": {"a": {"dtype": "U8", "shape": [4]}},
    "field too many": {"a": {**entry(), "stride": 1}},
    "negative size": {"a": entry(shape=[-4])},
    "fractional size": {"a": entry(shape=[4.0])},
    "boolean size": {"a": entry(shape=[True, 4])},
    "size past 2^63": {"a": entry(shape=[1 << 63])},
    "product past any file": {"a": entry(shape=[1 << 40, 1 << 40, 1 << 40])},
    "offsets backwards": {"a": entry(offsets=[4, 0])},
    "negative offset": {"a": entry(offsets=[-4, 0])},
    "three offsets": {"a": entry(offsets=[0, 2, 4])},
    "shape is not the bytes": {"a": entry(shape=[3])},
    "dtype no string": {"a": entry(dtype=8)},
    "overlap": {"a": entry(), "b": entry(offsets=[2, 6])},
    "the same bytes twice": {"a": entry(), "b": entry()},
    "gap": {"a": entry(shape=[2], offsets=[0, 2]), "b": entry(shape=[1], offsets=[3, 4])},
    "begins late": {"a": entry(shape=[3], offsets=[1, 4])},
    "longer than its header": {"a": entry(shape=[3], offsets=[0, 3])},
    "past the end": {"a": entry(shape=[5], offsets=[0, 5])},
}


@pytest.mark.parametrize("fault", BAD_HEADERS)
def test_bad_header_is_one_line_naming_the_file(tmp_path: Path, fault: str) -> None:
    path = write_header(tmp_path / "bad.safetensors", BAD_HEADERS[fault], bytes(4))
    with pytest.raises(ConfigError) as caught:
        read_header(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_empty_tensor_and_unknown_dtype_of_another_tensor_do_not_matter(tmp_path: Path) -> None:
    header = {"a": entry(), "none": entry(shape=[0, 7], offsets=[4, 4]), "new": entry(dtype="F2", offsets=[4, 5])}
    file = read_header(write_header(tmp_path / "a.safetensors", header, bytes(5)))
    assert sorted(file.tensors) == ["a", "new", "none"]


def test_made_headers_are_those_of_the_safetensors_library(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    numpy.save_file({"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, tmp_path / "a.safetensors")
    found = read_header(tmp_path / "a.safetensors").tensors["x"]
    raw = found.path.read_bytes()[found.begin : found.end]
    assert (found.dtype, found.shape, raw) == ("F32", (2, 3), np.arange(6, dtype=np.float32).tobytes())


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_header(tmp_path / "none.safetensors")


def test_raw_tensor_helper_writes_what_it_says(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"t": RawTensor("U8", [2, 2], b"abcd")})
    assert path.read_bytes().endswith(b"abcd")
