# SPDX-License-Identifier: Apache-2.0
"""Staging end to end on files: every row back, nothing written twice, kills and faults in between."""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from region_fixtures import RawTensor, pattern_table, random_bytes, rows_of, v41_tensors, write_safetensors

from slacktier.errors import ConfigError, ContractError, TierError
from slacktier.page import PAGE_BYTES, State
from slacktier.region import open_region
from slacktier_native.pages import pattern_fill
from slacktier_tierd import staging
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.report import StageReport
from slacktier_tierd.sources import RowSource, SafetensorsSource
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.tables import Family, RawWidths, find_table
from slacktier_tierd.verify import verify_region

THREE_CHUNKS = 40_000  # rows of 256 + 8 bytes: 2,667 pages, two chunks and a part
SMALL_STEPS = StageOptions(watermark_bytes=1)


class KilledError(Exception):
    """What a test raises where a kill would come."""


def kill_after(phase: str, calls: int) -> Callable[[str, int, int], None]:
    seen = []

    def progress(name: str, done_bytes: int, total_bytes: int) -> None:
        seen.append(name)
        if seen.count(phase) == calls and name == phase:
            raise KilledError

    return progress


def written_bytes() -> int:
    """Bytes that this process has had written to storage, by the kernel's count."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["write_bytes"])


def v41_source(directory: Path, rows: int = 500, seed: int = 0) -> SafetensorsSource:
    path = write_safetensors(directory / f"seed{seed}.safetensors", v41_tensors(1, rows, seed=seed))
    return SafetensorsSource(find_table(open_checkpoint(path), 1, family=Family.V41, model="m"))


def expected_rows(source: SafetensorsSource, rows: int = 500, seed: int = 0) -> list[bytes]:
    weight, scale = (tensor.data for tensor in v41_tensors(1, rows, seed=seed).values())
    return [weight[32 * row : 32 * row + 32] + scale[row : row + 1] for row in range(rows)]


@pytest.mark.parametrize("stripes", [1, 2, 3, 5])
def test_every_row_comes_back_from_any_number_of_stripes(tmp_path: Path, stripes: int) -> None:
    source = v41_source(tmp_path)
    paths = [tmp_path / f"{index}.region" for index in range(stripes)]
    report = stage(source, paths)
    assert rows_of(paths) == expected_rows(source)
    assert (report.outcome, report.pages_staged, report.epoch) == ("staged", report.page_count, 1)
    assert report.bytes_read == 500 * 33
    assert report.bytes_verified == report.page_count * PAGE_BYTES
    assert sum(path.stat().st_size for path in paths) == (report.page_count + 2 * stripes) * PAGE_BYTES


def test_more_stripes_than_pages(tmp_path: Path) -> None:
    source = v41_source(tmp_path, rows=3)
    paths = [tmp_path / f"{index}.region" for index in range(4)]
    stage(source, paths)
    assert rows_of(paths) == expected_rows(source, rows=3)


@pytest.mark.parametrize("stripes", [1, 3])
def test_second_run_over_a_complete_region_writes_nothing(tmp_path: Path, stripes: int) -> None:
    source, paths = v41_source(tmp_path), [tmp_path / f"{index}.region" for index in range(stripes)]
    first = stage(source, paths)
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths]
    os.sync()
    written = written_bytes()
    second = stage(source, paths)
    assert written_bytes() == written
    assert (second.outcome, second.bytes_written, second.pages_staged) == ("unchanged", 0, 0)
    assert second.source_digest == first.source_digest
    assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in paths] == before


def test_other_bytes_of_the_same_shape_are_refused_and_restaged_on_request(tmp_path: Path) -> None:
    old, new, target = v41_source(tmp_path), v41_source(tmp_path, seed=7), tmp_path / "t.region"
    stage(old, [target])
    before = target.read_bytes()
    with pytest.raises(ConfigError, match="holds other rows of the same shape") as caught:
        stage(new, [target])
    assert "--restage" in caught.value.hint
    assert target.read_bytes() == before
    report = stage(new, [target], StageOptions(restage=True))
    assert (report.outcome, report.epoch) == ("staged", 2)
    assert rows_of([target]) == expected_rows(new, seed=7)


def test_page_of_an_older_epoch_does_not_pass_for_a_new_one(tmp_path: Path) -> None:
    old, new, target = v41_source(tmp_path), v41_source(tmp_path, seed=7), tmp_path / "t.region"
    stage(old, [target])
    stale_page = target.read_bytes()[3 * PAGE_BYTES : 4 * PAGE_BYTES]
    stage(new, [target], StageOptions(restage=True))
    with target.open("r+b") as file:
        file.seek(3 * PAGE_BYTES)
        file.write(stale_page)
    with pytest.raises(ContractError, match="page 1: header"):
        rows_of([target])


@pytest.mark.parametrize("stripes", [1, 2])
@pytest.mark.parametrize(("phase", "calls"), [("stage", 1), ("stage", 2), ("stage", 3), ("verify", 1), ("verify", 3)])
def test_killed_run_is_refused_by_readers_and_goes_on_where_it_stopped(
    tmp_path: Path, phase: str, calls: int, stripes: int
) -> None:
    source = pattern_table(THREE_CHUNKS)
    paths = [tmp_path / f"{index}.region" for index in range(stripes)]
    with pytest.raises(KilledError):
        stage(source, paths, SMALL_STEPS, kill_after(phase, calls))
    with pytest.raises(ConfigError, match="staging is not finished"):
        open_region(paths)
    report = stage(source, paths, SMALL_STEPS)
    staged_before = 1024 * calls if phase == "stage" and calls < 3 else 2667
    assert (report.outcome, report.pages_resumed_at) == ("resumed", staged_before)
    assert report.pages_staged == 2667 - staged_before
    assert verify_region(paths, check_pattern=True).fault_count == 0


def test_kill_before_the_first_watermark_begins_anew_with_the_same_epoch(tmp_path: Path) -> None:
    source, target = pattern_table(THREE_CHUNKS), tmp_path / "t.region"
    with pytest.raises(KilledError):
        stage(source, [target], StageOptions(), kill_after("stage", 1))
    report = stage(source, [target])
    assert (report.outcome, report.pages_staged, report.epoch) == ("staged", 2667, 1)


def test_source_that_changed_between_kill_and_resume_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "t.region"
    with pytest.raises(KilledError):
        stage(pattern_table(THREE_CHUNKS, seed=1), [target], SMALL_STEPS, kill_after("stage", 1))
    before = target.read_bytes()
    with pytest.raises(ConfigError, match="not the one that its first 1024 pages were staged from") as caught:
        stage(pattern_table(THREE_CHUNKS, seed=2), [target])
    assert "--restage" in caught.value.hint
    assert target.read_bytes() == before


def test_page_that_reads_back_wrong_is_never_complete_and_is_staged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a device that loses a write. Method: a page is overwritten between the last write and the verification."""
    source, target = pattern_table(THREE_CHUNKS), tmp_path / "t.region"
    honest = staging._Staging._verify

    def verify_lossy(run: staging._Staging) -> None:
        with target.open("r+b") as file:
            file.seek(1500 * PAGE_BYTES)
            file.write(bytes(PAGE_BYTES))
        honest(run)

    monkeypatch.setattr(staging._Staging, "_verify", verify_lossy)
    with pytest.raises(ContractError, match=r"read back after staging: layer 1 page 1498 .*never staged"):
        stage(source, [target])
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="staging is not finished: 1024 of 2667"):
        open_region([target])
    report = stage(source, [target])
    assert (report.outcome, report.pages_resumed_at) == ("resumed", 1024)
    assert verify_region([target], check_pattern=True).fault_count == 0


def test_rows_that_pass_their_checks_but_are_not_the_sources_are_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: bytes that went wrong before their CRC was made. Method: the encoder is given another row."""
    source, target = pattern_table(100), tmp_path / "t.region"
    honest = staging.PageCodec.encode

    def encode_wrong(codec, first, count, weights, scales, out):  # type: ignore[no-untyped-def]
        wrong = weights.copy()
        wrong[300] ^= 1
        honest(codec, first, count, wrong, scales, out)

    monkeypatch.setattr(staging.PageCodec, "encode", encode_wrong)
    with pytest.raises(ContractError, match="rows of chunk 0 are not the source's"):
        stage(source, [target])
    with pytest.raises(ConfigError, match="staging is not finished"):
        open_region([target])


def test_superblock_copy_lost_to_a_kill_or_a_flipped_bit_is_written_again(tmp_path: Path) -> None:
    source, target = v41_source(tmp_path), tmp_path / "t.region"
    stage(source, [target])
    with target.open("r+b") as file:
        file.seek(PAGE_BYTES + 100)
        file.write(b"\xff")
    assert verify_region([target]).fault_count == 1
    report = stage(source, [target])
    assert (report.outcome, report.bytes_written) == ("unchanged", 2 * PAGE_BYTES)
    assert verify_region([target]).fault_count == 0


def test_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    source, target = v41_source(tmp_path), tmp_path / "t.region"
    stage(source, [target])
    with target.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=f"{target}: another process is writing it"):
            stage(source, [target])


def test_second_writer_of_a_file_that_is_just_being_made_is_refused(tmp_path: Path) -> None:
    source, target = v41_source(tmp_path), tmp_path / "t.region"
    seen: list[str] = []

    def stage_twice(phase: str, done_bytes: int, total_bytes: int) -> None:
        with pytest.raises(ConfigError, match="another process is writing it"):
            stage(source, [target])
        seen.append(phase)

    stage(source, [target], progress=stage_twice)
    assert seen == ["stage", "verify"]


@pytest.mark.parametrize("content", [b"precious" * 4096, b"", bytes(8192)])
def test_file_that_is_not_ours_is_left_alone_unless_format(tmp_path: Path, content: bytes) -> None:
    source, target = v41_source(tmp_path), tmp_path / "t.region"
    target.write_bytes(content)
    with pytest.raises(ConfigError, match="carries no superblock of ours"):
        stage(source, [target], StageOptions(restage=True))
    assert target.read_bytes() == content
    assert stage(source, [target], StageOptions(may_format=True)).outcome == "staged"
    assert rows_of([target]) == expected_rows(source)


def test_name_too_long_for_the_superblock_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected at most 128 bytes"):
        stage(pattern_table(10, model="m" * 129), [tmp_path / "t.region"])
    assert list(tmp_path.iterdir()) == []


def test_one_refused_stripe_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    source = v41_source(tmp_path)
    (tmp_path / "b").write_bytes(b"precious")
    with pytest.raises(ConfigError):
        stage(source, [tmp_path / "a", tmp_path / "b"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "seed0.safetensors"]


def test_one_target_twice_is_refused(tmp_path: Path) -> None:
    source = v41_source(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for pair in (["a", "a"], ["a", "link"]):
        with pytest.raises(ConfigError, match="given twice"):
            stage(source, [tmp_path / name for name in pair])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/dev/slacktier-none", "no such device; no other one is tried"),
        ("/dev/null", "neither a regular file nor a block device"),
        ("missing/t.region", "no such directory"),
        (".", "neither a regular file nor a block device"),
    ],
)
def test_what_can_be_no_target_is_refused(tmp_path: Path, target: str, message: str) -> None:
    source = v41_source(tmp_path)
    with pytest.raises(ConfigError, match=message):
        stage(source, [tmp_path / target])


def test_new_file_behind_a_dangling_link_is_made_where_the_link_points(tmp_path: Path) -> None:
    source = v41_source(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    stage(source, [tmp_path / "link"])
    assert (tmp_path / "link").is_symlink()
    assert rows_of([tmp_path / "a"]) == expected_rows(source)


def test_leftover_of_a_killed_creation_is_replaced(tmp_path: Path) -> None:
    source, target = v41_source(tmp_path), tmp_path / "t.region"
    (tmp_path / ".t.region.slacktier-new").write_bytes(b"x" * 100_000)
    stage(source, [target])
    assert rows_of([target]) == expected_rows(source)
    assert not (tmp_path / ".t.region.slacktier-new").exists()


def test_restage_of_a_smaller_table_gives_the_file_its_new_size(tmp_path: Path) -> None:
    target = tmp_path / "t.region"
    stage(pattern_table(5000), [target])
    stage(pattern_table(100), [target], StageOptions(restage=True))
    assert target.stat().st_size == (2 + 7) * PAGE_BYTES
    assert verify_region([target], check_pattern=True).fault_count == 0


class FailingSource:
    """A source whose file is cut off while it is read."""

    def __init__(self, inner: RowSource, row: int) -> None:
        self.table, self.direct, self._inner, self._row = inner.table, True, inner, row
        self.files = inner.files

    def read(self, row_first, row_count, into):  # type: ignore[no-untyped-def]
        if row_first <= self._row < row_first + row_count:
            raise TierError("cut", tier="source", operation="read", target="x")
        return self._inner.read(row_first, row_count, into)

    def close(self) -> None:
        self._inner.close()


def test_source_that_fails_midway_leaves_a_region_that_resumes(tmp_path: Path) -> None:
    source, target = pattern_table(THREE_CHUNKS), tmp_path / "t.region"
    with pytest.raises(TierError, match="cut"):
        stage(FailingSource(source, 35_000), [target], StageOptions(watermark_bytes=1, threads=1))
    report = stage(source, [target])
    assert (report.outcome, report.pages_resumed_at) == ("resumed", 2048)
    assert verify_region([target], check_pattern=True).fault_count == 0


def test_shard_cut_after_its_header_was_read_is_an_error_and_never_zeros(tmp_path: Path) -> None:
    source = v41_source(tmp_path)
    os.truncate(tmp_path / "seed0.safetensors", 9000)
    with pytest.raises(TierError, match=r"it ends at 9000, expected bytes up to \d+"):
        stage(source, [tmp_path / "t.region"])


def test_wide_and_narrow_rows_by_number(tmp_path: Path) -> None:
    for width, scale in ((1, 0), (3, 1), (2000, 40), (4000, 64)):
        rows = 5 if width > 1000 else 4000
        tensors = {
            "t": RawTensor("U8", [rows, width], random_bytes(rows * width, width)),
            "s": RawTensor("U8", [rows, scale or 1], random_bytes(rows * (scale or 1), 1)),
        }
        path = write_safetensors(tmp_path / f"{width}.safetensors", tensors)
        raw = RawWidths("t", width, "s" if scale else "", scale)
        source = SafetensorsSource(find_table(open_checkpoint(path), 0, family=Family.RAW, raw=raw))
        target = tmp_path / f"{width}.region"
        stage(source, [target])
        weights, scales = tensors["t"].data, tensors["s"].data
        assert rows_of([target]) == [
            weights[row * width : (row + 1) * width] + scales[row * scale : (row + 1) * scale] for row in range(rows)
        ]


def test_superblock_says_where_the_table_came_from(tmp_path: Path) -> None:
    report: StageReport = stage(pattern_table(100, seed=9), [tmp_path / "t.region"])
    with open_region([tmp_path / "t.region"]) as region:
        sb = region.superblock
    assert (sb.model, sb.revision, sb.source) == ("m", "r1", "test pattern=9")
    assert (sb.state, sb.staged_pages, sb.source_digest.hex()) == (State.COMPLETE, 7, report.source_digest)


def test_digest_chain_is_what_the_format_says(tmp_path: Path) -> None:
    """Worked out here from docs/page-format.md alone, over a chunk and a part of one."""
    rows, payload, scales = 1030, 4000, 4  # one row per page
    weights, scale_data = np.empty((rows, payload), np.uint8), np.empty((rows, scales), np.uint8)
    pattern_fill(1, 0, rows, payload, scales, weights, scale_data)
    chain = hashlib.sha256(b"slacktier source digest 1\0" + struct.pack("<QIIIf", rows, payload, scales, 0, 1.0))
    for first, end in ((0, 1024), (1024, 1030)):
        chunk = hashlib.sha256(weights[first:end].tobytes() + scale_data[first:end].tobytes())
        chain = hashlib.sha256(chain.digest() + chunk.digest())
    source = pattern_table(rows, payload_bytes=payload, scale_bytes=scales)
    assert stage(source, [tmp_path / "t.region"]).source_digest == chain.hexdigest()
