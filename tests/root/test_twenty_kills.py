# SPDX-License-Identifier: Apache-2.0
"""Twenty kills at random moments, on files, stripes and devices; and what a staging holds in memory."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from staging_kills import check_kill, child_seconds, random_delays

ROWS = 200_000  # 13 chunks, 52 MiB
MIB = 1 << 20


@pytest.mark.parametrize("place", ["file", "device", "device and file"])
def test_killed_staging_resumes_to_a_region_whose_every_row_verifies(
    tmp_path: Path, make_loop: Callable[..., Path], place: str
) -> None:
    """20 kills in all: 10 on a file, 5 on a device, 5 on stripes on both, each at a moment of its own."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    kills = 10 if place == "file" else 5

    def targets(at: int) -> list[Path]:
        files = [tmp_path / f"{at}.region"] if "file" in place else []
        return ([make_loop(64 * MIB)] if "device" in place else []) + files

    seconds = child_seconds(ROWS, targets(-1))
    outcomes = Counter(
        check_kill(ROWS, targets(at), [delay_s]) for at, delay_s in enumerate(random_delays(seconds, kills, seed))
    )
    assert sum(outcomes.values()) == kills
    assert outcomes["resumed"] + outcomes["staged"] >= 1, f"every kill came too late: {outcomes}"


def test_one_region_killed_again_and_again_still_ends_complete(tmp_path: Path) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    seconds = child_seconds(ROWS, [tmp_path / "undisturbed"])
    check_kill(ROWS, [tmp_path / "t.region"], random_delays(seconds, 5, seed))


def test_peak_memory_stays_under_512_mib_for_a_table_larger_than_that(tmp_path: Path) -> None:
    """With as many threads as the commands take, staging and verifying."""
    slacktier, target = Path(sys.executable).with_name("slacktier"), tmp_path / "t.region"
    rows = ["--synthetic", "v41", "--layer", "1", "--rows", "3000000"]
    for arguments in (["stage", *rows, "--target", str(target)], ["verify", str(target), "--check-pattern"]):
        # wait4 gives this child's peak; RUSAGE_CHILDREN's is of all children that this process ever had.
        child = os.posix_spawn(slacktier, [str(slacktier), *arguments, "--threads", "20"], os.environ)
        _, status, usage = os.wait4(child, 0)
        assert status == 0
        assert usage.ru_maxrss < 512 * 1024  # KiB
    assert target.stat().st_size > 750 * MIB
