# SPDX-License-Identifier: Apache-2.0
"""Staging to block devices: nothing is written to one that is not ours, in use or too small."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from region_fixtures import pattern_table, rows_of, v41_tensors, write_safetensors

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES
from slacktier.region import open_region
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.sources import SafetensorsSource
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.tables import Family, find_table
from slacktier_tierd.verify import verify_region

MIB = 1 << 20
FORMAT = StageOptions(may_format=True)
MakeLoop = Callable[..., Path]
MakeDisk = Callable[..., Path]


def digest(device: Path) -> str:
    return hashlib.sha256(device.read_bytes()).hexdigest()


def sectors_written(device: Path) -> int:
    """By the kernel's count; field 7 of the device's stat."""
    return int(Path(f"/sys/block/{device.name}/stat").read_text().split()[6])


def scribble(device: Path) -> None:
    with device.open("r+b") as file:
        file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def as_nobody() -> Iterator[None]:
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_every_row_comes_back_from_a_device_larger_than_its_region(
    tmp_path: Path, make_loop: MakeLoop, sector_bytes: int
) -> None:
    device = make_loop(64 * MIB, sector_bytes)
    tensors = v41_tensors(1, 5000)
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    source = SafetensorsSource(find_table(open_checkpoint(path), 1, family=Family.V41))
    report = stage(source, [device], FORMAT)
    assert (report.outcome, report.direct_target) == ("staged", True)
    weight, scale = (tensor.data for tensor in tensors.values())
    assert rows_of([device]) == [weight[32 * row : 32 * row + 32] + scale[row : row + 1] for row in range(5000)]
    assert verify_region([device]).fault_count == 0


@pytest.mark.parametrize("content", [scribble, lambda device: None], ids=["other data", "zeros"])
def test_device_without_our_superblock_is_untouched_unless_format(
    make_loop: MakeLoop, content: Callable[[Path], None]
) -> None:
    device = make_loop(32 * MIB)
    content(device)
    before, written = digest(device), sectors_written(device)
    for options in (StageOptions(), StageOptions(restage=True)):
        with pytest.raises(ConfigError, match=f"{device}: carries no superblock of ours") as caught:
            stage(pattern_table(1000), [device], options)
        assert caught.value.hint == "--format writes over it"
    assert (digest(device), sectors_written(device)) == (before, written)
    assert stage(pattern_table(1000), [device], FORMAT).outcome == "staged"


def test_second_run_writes_no_sector(make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB)
    stage(pattern_table(1000), [device], FORMAT)
    os.sync()
    written = sectors_written(device)
    report = stage(pattern_table(1000), [device], FORMAT)
    os.sync()
    assert (report.outcome, report.bytes_written, sectors_written(device)) == ("unchanged", 0, written)


def test_mounted_device_is_refused_even_with_format(make_disk: MakeDisk, tmp_path: Path) -> None:
    mount = make_disk("ext4", 32 * MIB)
    device = next(Path(line.split()[0]) for line in Path("/proc/mounts").read_text().splitlines() if str(mount) in line)
    (mount / "precious").write_text("data")
    before = digest(device)
    with pytest.raises(ConfigError, match=f"{device}: device in use: mounted at {mount}"):
        stage(pattern_table(100), [device], FORMAT)
    assert digest(device) == before


def test_device_that_another_process_has_claimed_is_refused(make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB)
    holder = os.open(device, os.O_RDWR | os.O_EXCL)
    try:
        with pytest.raises(ConfigError, match=f"{device}: device in use: another process or a mount has claimed it"):
            stage(pattern_table(100), [device], FORMAT)
    finally:
        os.close(holder)


def test_read_only_device_is_refused_untouched_but_may_be_compared(tmp_path: Path, make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB, read_only=True)
    before = digest(device)
    with pytest.raises(ConfigError, match=f"{device}: the device is read-only"):
        stage(pattern_table(1000), [device], FORMAT)
    assert digest(device) == before
    region = tmp_path / "t.region"
    stage(pattern_table(1000), [region])
    device = make_loop(region.stat().st_size, read_only=True, content=region.read_bytes())
    assert stage(pattern_table(1000), [device]).outcome == "unchanged"


def test_second_writer_on_a_device_is_refused(make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB)
    seen: list[str] = []

    def stage_twice(phase: str, done_bytes: int, total_bytes: int) -> None:
        with pytest.raises(ConfigError, match="another process or a mount has claimed it"):
            stage(pattern_table(100), [device], FORMAT)
        seen.append(phase)

    stage(pattern_table(100), [device], FORMAT, stage_twice)
    assert seen == ["stage", "verify"]


def test_device_one_page_too_small_is_refused_untouched(make_loop: MakeLoop) -> None:
    needed = pattern_table(1000).table.superblock().stripe_bytes
    small, fits = make_loop(needed - PAGE_BYTES), make_loop(needed)
    scribble_first_page(small)
    before = digest(small)
    with pytest.raises(ConfigError, match=f"device of {needed - PAGE_BYTES} bytes, the region needs {needed}"):
        stage(pattern_table(1000), [small], FORMAT)
    assert digest(small) == before
    stage(pattern_table(1000), [fits], FORMAT)
    assert verify_region([fits], check_pattern=True).fault_count == 0


def scribble_first_page(device: Path) -> None:
    with device.open("r+b") as file:
        file.write(os.urandom(PAGE_BYTES))


@pytest.fixture
def private_device(make_loop: MakeLoop) -> Iterator[Path]:
    device = make_loop(8 * MIB)
    mode = device.stat().st_mode
    device.chmod(0o600)
    yield device
    device.chmod(mode)


def test_device_that_nobody_may_open_names_cause_and_remedy(private_device: Path) -> None:
    actions = (lambda: stage(pattern_table(100), [private_device], FORMAT), lambda: open_region([private_device]))
    for action in actions:
        with as_nobody(), pytest.raises(ConfigError, match="permission denied for user id 65534") as caught:
            action()
        assert str(private_device) in str(caught.value)
        assert "device_ownership_from_security_context" in caught.value.hint
        assert "with mode 0600" in caught.value.hint


def test_stripes_on_a_device_and_a_file(tmp_path: Path, make_loop: MakeLoop) -> None:
    targets = [make_loop(32 * MIB), tmp_path / "1.region", make_loop(32 * MIB)]
    stage(pattern_table(50_000), targets, FORMAT)
    assert verify_region(targets, check_pattern=True).fault_count == 0
    assert stage(pattern_table(50_000), targets).outcome == "unchanged"


def test_formatting_again_after_our_region_was_lost_never_reuses_its_epoch_for_other_rows(make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB)
    stage(pattern_table(1000), [device], FORMAT)
    report = stage(pattern_table(2000), [device], StageOptions(restage=True))
    assert report.epoch == 2
    assert verify_region([device], check_pattern=True).fault_count == 0


def test_flipped_bit_on_a_device_is_found(make_loop: MakeLoop) -> None:
    device = make_loop(32 * MIB)
    stage(pattern_table(1000), [device], FORMAT)
    with device.open("r+b") as file:
        file.seek(20 * PAGE_BYTES + 100)
        byte = file.read(1)[0]
        file.seek(20 * PAGE_BYTES + 100)
        file.write(bytes([byte ^ 8]))
    assert verify_region([device]).faults == ["layer 1 page 18 row 270: row checksum does not match"]
