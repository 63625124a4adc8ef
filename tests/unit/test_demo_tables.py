# SPDX-License-Identifier: Apache-2.0
"""The demo's tables are made once, used again, replaced where another size is wanted, and swept with real reads."""

from pathlib import Path

import numpy as np
import pytest

from slacktier.errors import ConfigError, ContractError
from slacktier.region import open_region
from slacktier_cli.demo import tables as demo_tables
from slacktier_cli.demo.probe import probe_disk
from slacktier_cli.demo.sweep import sweep_rows
from slacktier_cli.demo.tables import StagedTable, TableStore
from slacktier_rowids.engram import EngramHasher, EngramLayout
from slacktier_tierd.report import no_progress

SIZE = 4 << 20  # the smallest tables of the released hash layout take 2 MiB
ROWS_MAX = SIZE // 264


def store(directory: Path, *, size: int = SIZE, seed: int = 1) -> TableStore:
    directory.mkdir(exist_ok=True)
    return TableStore(directory, table_bytes=size, seed=seed)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[StagedTable, ...]]:
    directory = tmp_path_factory.mktemp("demo") / "tables"
    return directory, store(directory).prepare(no_progress)


def test_both_layers_are_staged_and_the_checkpoint_is_gone(staged: tuple[Path, tuple[StagedTable, ...]]) -> None:
    directory, tables = staged
    assert [table.layer_id for table in tables] == [1, 14]
    assert 0 < sum(table.rows for table in tables) <= ROWS_MAX
    assert [table.full_rows for table in tables] == [384_006_168, 384_016_682]
    assert {path.name for path in directory.iterdir()} == {"config.json", "layer1.region", "layer14.region"}
    for table in tables:
        with open_region([table.path]) as region:
            assert region.superblock.row_count == table.rows


def test_second_run_uses_them_as_they_are(staged: tuple[Path, tuple[StagedTable, ...]]) -> None:
    directory, tables = staged
    before = {table.path: table.path.stat().st_mtime_ns for table in tables}
    again = store(directory)
    assert again.missing() == []
    assert all(table.was_reused for table in again.prepare(no_progress))
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_sweep_reads_every_row_through_the_native_path(staged: tuple[Path, tuple[StagedTable, ...]]) -> None:
    tables = staged[1]
    total = sum(table.rows for table in tables)
    told: list[int] = []
    result = sweep_rows(tables, 10 * total, seed=1, progress=told.append)
    assert (result.rows_checked, result.mismatched_rows, told[-1]) == (total, 0, total)


def test_sweep_counts_rows_that_are_not_the_patterns(staged: tuple[Path, tuple[StagedTable, ...]]) -> None:
    wrong = [
        StagedTable(
            t.layer_id, t.path, t.rows, t.full_rows, t.region_bytes, t.payload_bytes, t.scale_bytes, t.rows_per_page,
            t.pattern_seed + 1, t.was_reused,
        )
        for t in staged[1]
    ]  # fmt: skip
    result = sweep_rows(wrong, 10, seed=1, progress=lambda _: None)
    assert result.mismatched_rows == result.rows_checked


def test_sweep_of_a_damaged_region_raises_rather_than_counts(tmp_path: Path) -> None:
    tables = store(tmp_path / "t").prepare(no_progress)
    raw = bytearray(tables[0].path.read_bytes())
    for page in range(2, len(raw) // 4096):
        raw[page * 4096 + 100] ^= 1
    tables[0].path.write_bytes(raw)
    with pytest.raises(ContractError, match="checksum"):
        sweep_rows(tables, 100, seed=1, progress=lambda _: None)


def test_probe_measures_tokens_and_pages(
    staged: tuple[Path, tuple[StagedTable, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slacktier_cli.demo.probe._SECONDS", 0.02)
    directory, tables = staged
    layout = EngramLayout.from_config(store(directory).layout.config)
    hasher = EngramHasher(layout, np.arange(129_280) % layout.compressed_vocab_size)
    probe = probe_disk(tables, hasher, np.arange(3000, dtype=np.uint32), tp=4)
    assert probe.tokens_per_s > 0
    assert probe.pages_per_s > 0
    assert probe.backend in ("uring", "posix")


def test_tables_of_another_size_or_seed_replace_them(tmp_path: Path) -> None:
    first = store(tmp_path / "t").prepare(no_progress)
    smaller = store(tmp_path / "t", size=SIZE // 2).prepare(no_progress)
    assert smaller[0].rows < first[0].rows
    assert not any(table.was_reused for table in smaller)
    reseeded = store(tmp_path / "t", size=SIZE // 2, seed=2)
    assert reseeded.missing() == [1, 14]
    assert reseeded.prepare(no_progress)[0].pattern_seed != smaller[0].pattern_seed


def test_run_that_was_stopped_between_layers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = demo_tables.stage, []

    def stop_before_the_second(*args: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(demo_tables, "stage", stop_before_the_second)
    with pytest.raises(KeyboardInterrupt):
        store(tmp_path / "t").prepare(no_progress)
    assert (tmp_path / "t" / "checkpoint").is_dir()
    tables = store(tmp_path / "t").prepare(no_progress)
    assert [table.was_reused for table in tables] == [True, False]
    assert len(calls) == 3


def test_file_that_is_no_region_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    precious = tmp_path / "t" / "layer1.region"
    precious.write_text("something else")
    for attempt in (lambda: store(tmp_path / "t").prepare(no_progress), store(tmp_path / "t").remove):
        with pytest.raises(ConfigError, match="not a region of an earlier demo"):
            attempt()
    assert precious.read_text() == "something else"


def test_remove_takes_the_tables_and_nothing_else(tmp_path: Path) -> None:
    made = store(tmp_path / "t")
    made.prepare(no_progress)
    (tmp_path / "t" / "notes.txt").write_text("mine")
    made.remove()
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["notes.txt"]


def test_disk_that_is_too_small_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_tables, "free_disk_bytes", lambda _: 1 << 20)
    with pytest.raises(ConfigError, match=r"the tables need 0\.07 GiB, 0\.00 GiB are free"):
        store(tmp_path / "t").check_space()
    assert list((tmp_path / "t").iterdir()) == []
