# SPDX-License-Identifier: Apache-2.0
"""What readers accept: complete regions of the right size, all stripes of one staging, and nothing else."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from region_fixtures import pattern_table

from slacktier.errors import ConfigError, ContractError
from slacktier.page import PAGE_BYTES, State, Superblock, encode_superblock, newest_superblock
from slacktier.region import open_error, open_region
from slacktier_tierd.staging import stage


def staged(tmp_path: Path, stripes: int = 1, rows: int = 100, model: str = "m") -> list[Path]:
    paths = [tmp_path / f"{model}-{index}-of-{stripes}.region" for index in range(stripes)]
    stage(pattern_table(rows, model=model), paths)
    return paths


def superblock(path: Path) -> Superblock:
    raw = path.read_bytes()
    return newest_superblock([raw[:PAGE_BYTES], raw[PAGE_BYTES : 2 * PAGE_BYTES]])


def rewrite(path: Path, sb: Superblock, copies: tuple[int, ...] = (0, 1)) -> None:
    with path.open("r+b") as file:
        for copy in copies:
            file.seek(copy * PAGE_BYTES)
            file.write(encode_superblock(sb))


def test_stripes_may_be_named_in_any_order(tmp_path: Path) -> None:
    paths = staged(tmp_path, stripes=3)
    with open_region([paths[2], paths[0], paths[1]]) as region:
        assert region.paths == tuple(paths)
        assert region.superblock.stripe_index == 0
        assert [os.fstat(fd).st_ino for fd in region.fds] == [path.stat().st_ino for path in paths]


@pytest.mark.parametrize("allow_partial", [False, True])
def test_unfinished_region_is_refused_with_its_progress(tmp_path: Path, allow_partial: bool) -> None:
    (path,) = staged(tmp_path)
    rewrite(path, replace(superblock(path), state=State.STAGING, staged_pages=5, sequence=99))
    with pytest.raises(ConfigError, match="staging is not finished: 5 of 7 pages"):
        open_region([path], allow_partial=allow_partial)


def test_partial_region_opens_only_with_the_flag(tmp_path: Path) -> None:
    (path,) = staged(tmp_path)
    rewrite(path, replace(superblock(path), state=State.PARTIAL, staged_pages=5, sequence=99))
    with pytest.raises(ConfigError, match="partial region with 5 of 7 pages"):
        open_region([path])
    with open_region([path], allow_partial=True) as region:
        assert region.superblock.state is State.PARTIAL


def test_one_unfinished_stripe_makes_the_region_unfinished(tmp_path: Path) -> None:
    paths = staged(tmp_path, stripes=2)
    rewrite(paths[1], replace(superblock(paths[1]), state=State.STAGING, sequence=99))
    with pytest.raises(ConfigError, match="staging is not finished"):
        open_region(paths)


def test_missing_repeated_and_foreign_stripes_are_refused(tmp_path: Path) -> None:
    paths = staged(tmp_path, stripes=2)
    other = staged(tmp_path, stripes=2, model="other")
    with pytest.raises(ConfigError, match=r"given as stripes \[0\], expected stripes 0 to 1, once each"):
        open_region(paths[:1])
    with pytest.raises(ConfigError, match=r"given as stripes \[0, 0\]"):
        open_region([paths[0], paths[0]])
    with pytest.raises(ConfigError, match=r"holds another table \(layer 1 of other\) than .*\(layer 1 of m\)"):
        open_region([paths[0], other[1]])
    with pytest.raises(ConfigError, match="no path"):
        open_region([])


def test_stripes_of_two_epochs_are_refused(tmp_path: Path) -> None:
    paths = staged(tmp_path, stripes=2)
    rewrite(paths[1], replace(superblock(paths[1]), epoch=2))
    with pytest.raises(ContractError, match="another staging"):
        open_region(paths)


@pytest.mark.parametrize("change", [-1, -PAGE_BYTES, 1, PAGE_BYTES])
def test_file_of_another_size_is_refused(tmp_path: Path, change: int) -> None:
    (path,) = staged(tmp_path)
    size = path.stat().st_size
    os.truncate(path, size + change)
    with pytest.raises(ContractError, match=f"{size + change} bytes, expected {size}"):
        open_region([path])


@pytest.mark.parametrize("copy", [0, 1])
def test_one_damaged_superblock_copy_is_survived_two_are_not(tmp_path: Path, copy: int) -> None:
    (path,) = staged(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[copy * PAGE_BYTES + 50] ^= 1
    path.write_bytes(raw)
    open_region([path]).close()
    raw[(1 - copy) * PAGE_BYTES + 60] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ContractError, match=r"no valid superblock: copy 0: .*checksum.* copy 1: .*checksum"):
        open_region([path])


def test_newer_copy_is_in_force(tmp_path: Path) -> None:
    (path,) = staged(tmp_path)
    rewrite(path, replace(superblock(path), state=State.STAGING, epoch=2, sequence=99), copies=(1,))
    with pytest.raises(ConfigError, match="not finished"):
        open_region([path])


def test_what_is_no_region_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello" * 5000)
    (tmp_path / "directory").mkdir()
    for name in ("empty", "text"):
        with pytest.raises(ConfigError, match=f"{name}: no region: it carries no superblock"):
            open_region([tmp_path / name])
    with pytest.raises(ConfigError, match="directory"):
        open_region([tmp_path / "directory"])
    with pytest.raises(ConfigError, match="no such file or device"):
        open_region([tmp_path / "none"])
    with pytest.raises(ConfigError, match="neither a regular file nor a block device"):
        open_region([Path("/dev/null")])


def test_refused_region_leaves_no_descriptor_open(tmp_path: Path) -> None:
    paths = staged(tmp_path, stripes=2)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(ConfigError):
        open_region([paths[0], paths[0]])
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_permission_error_names_user_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    path.chmod(0o660)
    error = open_error(path, OSError(errno.EACCES, "Permission denied"))
    assert f"{path}: permission denied for user id {os.geteuid()}" in str(error)
    assert f"belongs to {os.getuid()}:{os.getgid()} with mode 0660" in error.hint


def test_fifo_and_socket_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="fifo: neither a regular file nor a block device"):
        open_region([tmp_path / "fifo"])
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(ConfigError, match="socket: cannot be opened"):
            open_region([tmp_path / "socket"])


def test_path_with_a_nul_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a\\x00b': no path: embedded null byte"):
        open_region(["a\0b"])


def test_reads_of_an_open_region_wait_for_the_device(tmp_path: Path) -> None:
    with open_region(staged(tmp_path)) as region:
        assert [fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK for fd in region.fds] == [0]
