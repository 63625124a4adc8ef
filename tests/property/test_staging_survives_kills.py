# SPDX-License-Identifier: Apache-2.0
"""A few kills at random moments; tests/root has twenty, and on a device."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from staging_kills import check_kill, child_seconds, random_delays

ROWS = 130_000  # 8.5 chunks, so that watermarks lie in between


@pytest.mark.parametrize("stripes", [1, 2])
def test_killed_staging_resumes_to_a_region_whose_every_row_verifies(tmp_path: Path, stripes: int) -> None:
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    seconds = child_seconds(ROWS, [tmp_path / f"undisturbed-{index}" for index in range(stripes)])
    for kill, delay_s in enumerate(random_delays(seconds, 2, seed)):
        targets = [tmp_path / f"{kill}-{index}" for index in range(stripes)]
        check_kill(ROWS, targets, [delay_s, delay_s / 2])
