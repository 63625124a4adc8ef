# SPDX-License-Identifier: Apache-2.0
"""Tables found in checkpoints: names, shapes, dtypes, shards; and what is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from region_fixtures import RawTensor, random_bytes, v41_tensors, write_safetensors

from slacktier.errors import ConfigError
from slacktier.page import RowFormat
from slacktier_tierd.checkpoint import INDEX_NAME, open_checkpoint
from slacktier_tierd.sources import SafetensorsSource, row_buffers
from slacktier_tierd.tables import Family, RawWidths, Table, detect_family, find_table, table_layers

QWEN = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding"


def read_all(table: Table) -> tuple[bytes, bytes]:
    source = SafetensorsSource(table)
    weights, scales = source.read(0, table.row_count, row_buffers(table, table.row_count))
    found = weights.tobytes(), b"" if scales is None else scales.tobytes()
    source.close()
    return found


def write_index(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def qwen_shards(rows: list[int], dtype: str = "BF16", dim: int = 5) -> dict[str, RawTensor]:
    size = 2 if dtype == "BF16" else 1
    return {
        f"{QWEN}.shard_{i}.weight": RawTensor(dtype, [count, dim], random_bytes(count * dim * size, i))
        for i, count in enumerate(rows)
    }


@pytest.mark.parametrize("prefix", ["", "model."])
def test_v41_weight_and_scale_in_different_shards(tmp_path: Path, prefix: str) -> None:
    tensors = v41_tensors(14, 200, prefix=prefix)
    (weight, weight_tensor), (scale, scale_tensor) = tensors.items()
    write_safetensors(tmp_path / "a.safetensors", {weight: weight_tensor})
    write_safetensors(tmp_path / "b.safetensors", {"other": RawTensor("U8", [3], b"xyz"), scale: scale_tensor})
    write_index(tmp_path, {weight: "a.safetensors", scale: "b.safetensors"})
    checkpoint = open_checkpoint(tmp_path)
    assert (detect_family(checkpoint), table_layers(checkpoint, Family.V41)) == (Family.V41, [14])
    table = find_table(checkpoint, 14, family=Family.V41)
    assert (table.row_count, table.payload_bytes, table.scale_bytes) == (200, 32, 1)
    assert table.row_format is RowFormat.FP8_E4M3_BLOCK_E8M0
    assert read_all(table) == (weight_tensor.data, scale_tensor.data)


def test_both_prefixes_are_one_table(tmp_path: Path) -> None:
    uuids = set()
    for prefix in ("", "model."):
        path = write_safetensors(tmp_path / f"{prefix}x.safetensors", v41_tensors(1, 20, prefix=prefix))
        uuids.add(find_table(open_checkpoint(path), 1, family=Family.V41, model="m").table_uuid)
    assert len(uuids) == 1


def test_uuid_depends_on_model_revision_and_layer(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "x.safetensors", v41_tensors(1, 20) | v41_tensors(2, 20))
    checkpoint = open_checkpoint(path)
    named = [("m", "r", 1), ("n", "r", 1), ("m", "s", 1), ("m", "r", 2)]
    uuids = {
        find_table(checkpoint, layer, family=Family.V41, model=model, revision=revision).table_uuid
        for model, revision, layer in named
    }
    assert len(uuids) == len(named)


def test_snapshot_directory_gives_model_and_revision(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name/snapshots/0a1b"
    snapshot.mkdir(parents=True)
    write_safetensors(snapshot / "model.safetensors", v41_tensors(1, 20))
    table = find_table(open_checkpoint(snapshot), 1, family=Family.V41)
    assert (table.model, table.revision) == ("org/name", "0a1b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": RawTensor("BF16", [20, 16], bytes(640))}, "dtype BF16, expected F8_E4M3"),
        ({"scale": RawTensor("U8", [20, 1], bytes(20))}, "dtype U8, expected F8_E8M0"),
        ({"scale": RawTensor("F8_E8M0", [19, 1], bytes(19))}, r"shape \[19, 1\], expected \[20, 1\]"),
        ({"scale": RawTensor("F8_E8M0", [20, 2], bytes(40))}, r"shape \[20, 2\], expected \[20, 1\]"),
        ({"weight": RawTensor("F8_E4M3", [640], bytes(640))}, r"shape \[640\], expected \[any, any\]"),
        ({"scale": None}, "no tensor 'layers.1.engram.embed.scale'"),
    ],
)
def test_mis_shaped_missing_or_mistyped_v41_tensor_is_refused(
    tmp_path: Path, change: dict[str, RawTensor | None], message: str
) -> None:
    named = {f"layers.1.engram.embed.{part}": tensor for part, tensor in change.items()}
    tensors = {name: t for name, t in {**v41_tensors(1, 20), **named}.items() if t is not None}
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(ConfigError, match=message):
        find_table(open_checkpoint(path), 1, family=Family.V41)


def test_layer_without_a_table_says_which_have_one(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "x.safetensors", v41_tensors(14, 20))
    with pytest.raises(ConfigError, match=r"no tensor 'layers\.1\.engram\.embed\.weight'") as caught:
        find_table(open_checkpoint(path), 1, family=Family.V41)
    assert "layers.14.engram.embed.weight" in caught.value.hint


@pytest.mark.parametrize("nested", [False, True])
def test_rows_must_be_what_the_config_promises(tmp_path: Path, nested: bool) -> None:
    write_safetensors(tmp_path / "model.safetensors", v41_tensors(14, 20))
    config = {"engram_layer_ids": [1, 14], "engram_num_embeddings": [7, 21], "engram_head_dim": 32}
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config} if nested else config))
    with pytest.raises(ConfigError, match=r"shape \[20, 32\], expected \[21, 32\]"):
        find_table(open_checkpoint(tmp_path), 14, family=Family.V41)


@pytest.mark.parametrize(("dtype", "row_format"), [("BF16", RowFormat.BF16), ("F8_E4M3", RowFormat.FP8_E4M3)])
def test_qwen_shards_join_in_order_with_a_short_last_one(tmp_path: Path, dtype: str, row_format: RowFormat) -> None:
    shards = qwen_shards([4, 4, 3], dtype)
    scale = {f"{QWEN}.weight_scale": RawTensor("BF16", [1], struct.pack("<f", 0.25)[2:])}
    write_safetensors(tmp_path / "model.safetensors", dict(reversed(list(shards.items()))) | scale)
    checkpoint = open_checkpoint(tmp_path)
    assert detect_family(checkpoint) is Family.QWEN38
    table = find_table(checkpoint, 1, family=Family.QWEN38)
    assert (table.row_count, table.row_format, table.tensor_scale) == (11, row_format, 0.25)
    assert read_all(table) == (b"".join(shard.data for shard in shards.values()), b"")


def test_qwen_shards_past_the_last_row_are_empty(tmp_path: Path) -> None:
    shards = qwen_shards([2, 2, 2, 0])
    write_safetensors(tmp_path / "model.safetensors", shards)
    weights, _ = read_all(find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38))
    assert weights == b"".join(shard.data for shard in shards.values())


def test_draft_models_table_is_passed_over_and_two_tables_of_a_layer_are_refused(tmp_path: Path) -> None:
    shards = qwen_shards([3, 3])
    draft = {f"mtp.{name}": RawTensor("BF16", [3, 5], bytes(30)) for name in shards}
    write_safetensors(tmp_path / "model.safetensors", draft | shards)
    weights, _ = read_all(find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38))
    assert weights == b"".join(shard.data for shard in shards.values())
    write_safetensors(tmp_path / "model.safetensors", shards | {f"other.{name}": shards[name] for name in shards})
    with pytest.raises(ConfigError, match="layer 1 has two tables"):
        find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38)


def test_eleven_qwen_shards_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    shards = qwen_shards([2] * 11)
    write_safetensors(tmp_path / "model.safetensors", shards)
    weights, _ = read_all(find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38))
    assert weights == b"".join(shard.data for shard in shards.values())


@pytest.mark.parametrize(
    ("rows", "message"),
    [([4, 3, 4], "3 rows, expected 4"), ([5, 5, 1], "5 rows, expected 4")],
)
def test_qwen_shards_that_the_engine_would_put_elsewhere_are_refused(
    tmp_path: Path, rows: list[int], message: str
) -> None:
    write_safetensors(tmp_path / "model.safetensors", qwen_shards(rows))
    with pytest.raises(ConfigError, match=message):
        find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38)


def test_missing_qwen_shard_is_named(tmp_path: Path) -> None:
    shards = qwen_shards([4, 4, 4])
    del shards[f"{QWEN}.shard_1.weight"]
    write_safetensors(tmp_path / "model.safetensors", shards)
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"split_ngram_parts": 3}}))
    with pytest.raises(ConfigError, match="2 ngram_embedding shards, expected 3; shard_1 is missing"):
        find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_weight_scale_must_be_a_positive_number(tmp_path: Path, scale: float) -> None:
    tensors = qwen_shards([4]) | {f"{QWEN}.weight_scale": RawTensor("F32", [1], struct.pack("<f", scale))}
    write_safetensors(tmp_path / "model.safetensors", tensors)
    with pytest.raises(ConfigError, match="expected a positive number"):
        find_table(open_checkpoint(tmp_path), 1, family=Family.QWEN38)


def test_any_width_by_number(tmp_path: Path) -> None:
    tensors = {"t": RawTensor("F32", [10, 3], random_bytes(120, 1)), "s": RawTensor("U8", [10, 2], random_bytes(20, 2))}
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    table = find_table(open_checkpoint(path), 0, family=Family.RAW, raw=RawWidths("t", 12, "s", 2))
    assert read_all(table) == (tensors["t"].data, tensors["s"].data)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (RawWidths("t", 11), "120 bytes in 10 rows, expected 11 bytes per row"),
        (RawWidths("t", 12, "s", 0), "go together"),
        (RawWidths("t", 12, "", 2), "go together"),
        (RawWidths("t", 12, "s", 3), "20 bytes in 10 rows, expected 3"),
        (RawWidths("u", 12), "no tensor 'u'"),
    ],
)
def test_widths_that_are_not_the_tensors_are_refused(tmp_path: Path, raw: RawWidths, message: str) -> None:
    tensors = {"t": RawTensor("F32", [10, 3], bytes(120)), "s": RawTensor("U8", [10, 2], bytes(20))}
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    with pytest.raises(ConfigError, match=message):
        find_table(open_checkpoint(path), 0, family=Family.RAW, raw=raw)


@pytest.mark.parametrize("file", ["../x.safetensors", "/etc/passwd", "", "..", "a\0b", 3])
def test_index_that_leads_out_of_its_directory_is_refused(tmp_path: Path, file: object) -> None:
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"t": file}}))
    with pytest.raises(ConfigError, match="expected a file name"):
        open_checkpoint(tmp_path)


def test_tensor_that_only_the_index_knows_is_named(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a.safetensors", {"t": RawTensor("U8", [1], b"x")})
    write_index(tmp_path, dict.fromkeys(v41_tensors(1, 1), "a.safetensors"))
    with pytest.raises(ConfigError, match=f"no tensor 'layers.1.engram.embed.weight', though {INDEX_NAME} says so"):
        find_table(open_checkpoint(tmp_path), 1, family=Family.V41)


def test_directory_without_tensors_and_checkpoint_without_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither"):
        open_checkpoint(tmp_path)
    write_safetensors(tmp_path / "a.safetensors", {"t": RawTensor("U8", [1], b"x")})
    with pytest.raises(ConfigError, match="no tensor layers") as caught:
        detect_family(open_checkpoint(tmp_path))
    assert "--payload-bytes" in caught.value.hint


def test_same_tensor_in_two_files_without_an_index_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_safetensors(tmp_path / f"{name}.safetensors", {"t": RawTensor("U8", [1], b"x")})
    with pytest.raises(ConfigError, match=r"'t' is also in a\.safetensors"):
        open_checkpoint(tmp_path)
