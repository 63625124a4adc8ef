# SPDX-License-Identifier: Apache-2.0
"""Made checkpoints: real names, dtypes and configs, whole or absent, every row checkable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from region_fixtures import V41_TINY
from safetensors import safe_open

from slacktier.errors import ConfigError
from slacktier.pattern import METADATA_KEY, pattern_seed
from slacktier_rowids.models import load_layout
from slacktier_tierd import checkpoint_writer
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.checkpoint_layout import qwen_layout, v41_layout
from slacktier_tierd.checkpoint_writer import write_checkpoint
from slacktier_tierd.sources import SafetensorsSource
from slacktier_tierd.staging import stage
from slacktier_tierd.tables import Family, find_table
from slacktier_tierd.verify import verify_region


def staged(directory: Path, layer_id: int, family: Family, target: Path) -> None:
    source = SafetensorsSource(find_table(open_checkpoint(directory), layer_id, family=family))
    stage(source, [target])
    source.close()


def test_v41_tables_have_the_row_counts_of_their_config(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ck", v41_layout(None, rows_max=6000, user_seed=7))
    config = json.loads((tmp_path / "ck/config.json").read_text())
    layout = load_layout(config)
    assert config["engram_layer_ids"] == [1, 14]
    assert max(layout.row_counts) <= 6000
    assert [config[f"engram_{name}"] for name in ("max_ngram_size", "n_heads", "head_dim", "pad_token_id")] == [
        4, 8, 256, 2,
    ]  # fmt: skip
    assert config["engram_compressed_vocab_size"] == 99092
    for layer_id, rows in zip(layout.layer_ids, layout.row_counts, strict=True):
        table = find_table(open_checkpoint(tmp_path / "ck"), layer_id, family=Family.V41)
        assert (table.row_count, table.payload_bytes, table.scale_bytes) == (rows, 256, 8)


def test_safetensors_library_reads_the_same_names_shapes_and_dtypes(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ck", v41_layout(V41_TINY, rows_max=40_000))
    with safe_open(tmp_path / "ck/model-00001-of-00002.safetensors", "numpy") as file:
        assert sorted(file.keys()) == ["layers.1.engram.embed.scale", "layers.1.engram.embed.weight"]
        weight = file.get_slice("layers.1.engram.embed.weight")
        assert (weight.get_shape()[1], weight.get_dtype()) == (32, "F8_E4M3")
        assert file.metadata()[METADATA_KEY] == "0"


@pytest.mark.parametrize("seed", [0, 12345])
def test_every_row_follows_the_pattern_of_seed_and_layer(tmp_path: Path, seed: int) -> None:
    write_checkpoint(tmp_path / "ck", v41_layout(V41_TINY, rows_max=30_000, user_seed=seed))
    for layer_id in (1, 14):
        target = tmp_path / f"{layer_id}.region"
        staged(tmp_path / "ck", layer_id, Family.V41, target)
        assert verify_region([target], check_pattern=True).fault_count == 0
        assert verify_region([target], check_pattern=True, seed=seed).fault_count == 0
        assert verify_region([target], check_pattern=True, seed=seed + 1).fault_count > 1000


@pytest.mark.parametrize(("dtype", "width", "scale"), [("fp8", 160, 0.5), ("bf16", 320, 1.0)])
def test_qwen_checkpoint_in_both_dtypes(tmp_path: Path, dtype: str, width: int, scale: float) -> None:
    write_checkpoint(tmp_path / "ck", qwen_layout(None, dtype=dtype, rows_max=3000, user_seed=1))
    config = json.loads((tmp_path / "ck/config.json").read_text())
    table = find_table(open_checkpoint(tmp_path / "ck"), 1, family=Family.QWEN38)
    assert (table.payload_bytes, table.scale_bytes, table.tensor_scale) == (width, 0, scale)
    assert table.row_count == load_layout(config).padded_row_counts[0] <= 3000
    assert config["text_config"]["split_ngram_parts"] == len(table.weights) == 8
    staged(tmp_path / "ck", 1, Family.QWEN38, tmp_path / "t.region")
    assert verify_region([tmp_path / "t.region"], check_pattern=True).fault_count == 0


def test_size_is_an_upper_bound_that_is_nearly_reached() -> None:
    layout = v41_layout(None, bytes_max=50_000_000)
    assert 49_000_000 < layout.byte_count <= 50_000_000


def test_released_row_counts_come_from_the_released_config() -> None:
    assert v41_layout(None).rows == {1: 384_006_168, 14: 384_016_682}


def test_other_layers_get_their_own_primes() -> None:
    assert list(v41_layout(None, rows_max=10_000, layers=[3]).rows) == [3]


@pytest.mark.parametrize(("rows", "size"), [(10, 0), (0, 1000)])
def test_table_smaller_than_any_is_refused(rows: int, size: int) -> None:
    with pytest.raises(ConfigError, match="no table fits"):
        v41_layout(None, rows_max=rows, bytes_max=size)


def test_existing_directory_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    with pytest.raises(ConfigError, match="exists; nothing is written over"):
        write_checkpoint(tmp_path / "ck", v41_layout(V41_TINY, rows_max=30_000))
    assert list((tmp_path / "ck").iterdir()) == []


def test_checkpoint_larger_than_the_disk_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    layout = v41_layout(None)
    layout.files["huge"] = layout.files.popitem()[1] * 1000
    with pytest.raises(ConfigError, match=r"needs [\d.]+ GiB, [\d.]+ GiB are free"):
        write_checkpoint(tmp_path / "ck", layout)
    assert list(tmp_path.iterdir()) == []


def test_failure_midway_leaves_nothing_and_a_leftover_of_a_kill_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    layout = v41_layout(V41_TINY, rows_max=30_000)
    monkeypatch.setattr(checkpoint_writer, "_fill", full)
    with pytest.raises(Exception, match="No space left"):
        write_checkpoint(tmp_path / "ck", layout)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    (tmp_path / ".ck.slacktier-new").mkdir()
    (tmp_path / ".ck.slacktier-new/model-00001-of-00002.safetensors").write_bytes(b"half")
    write_checkpoint(tmp_path / "ck", layout)
    assert [path.name for path in tmp_path.iterdir()] == ["ck"]
    staged(tmp_path / "ck", 1, Family.V41, tmp_path / "t.region")


def test_pattern_seeds_of_all_layers_differ() -> None:
    seeds = {pattern_seed(seed, layer) for seed in range(20) for layer in range(50)}
    assert len(seeds) == 1000
    with pytest.raises(ConfigError):
        pattern_seed(1 << 48, 0)
    with pytest.raises(ConfigError):
        pattern_seed(0, 1 << 16)
