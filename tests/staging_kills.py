# SPDX-License-Identifier: Apache-2.0
"""Kills stagings at random moments and checks what each kill leaves: nothing that a reader accepts, and a way on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from region_fixtures import pattern_table

from slacktier.errors import SlackTierError
from slacktier.region import open_region
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.verify import verify_region

CHILD = Path(__file__).with_name("staging_child.py")


def start_child(rows: int, targets: Sequence[Path]) -> subprocess.Popen[str]:
    """A staging that has imported everything and is about to open its targets."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(rows), *map(str, targets)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def child_seconds(rows: int, targets: Sequence[Path]) -> float:
    """How long an undisturbed staging takes after `ready`."""
    with start_child(rows, targets) as child:
        started = time.monotonic()
        assert child.wait() == 0
        return time.monotonic() - started


def is_accepted(targets: Sequence[Path]) -> bool:
    """Whether a reader opens what is there."""
    try:
        open_region(targets).close()
    except SlackTierError:
        return False
    return True


def kill_once(rows: int, targets: Sequence[Path], delay_s: float) -> bool:
    """Kill a staging delay_s after it began; returns whether it had said that it is complete."""
    with start_child(rows, targets) as child:
        time.sleep(delay_s)
        child.kill()
        assert child.stdout is not None
        return child.stdout.read() == "complete\n"


def check_kill(rows: int, targets: Sequence[Path], delays_s: Sequence[float]) -> str:
    """Kill at each delay in turn, then let a run end; every row must verify. Returns what the last run did."""
    for delay_s in delays_s:
        complete = kill_once(rows, targets, delay_s)
        if complete:
            assert is_accepted(targets)
        elif is_accepted(targets):  # killed after `complete` was durable, before it could say so
            assert verify_region(targets, check_pattern=True).fault_count == 0
    options = StageOptions(may_format=True)
    report = stage(pattern_table(rows), targets, options)
    verified = verify_region(targets, check_pattern=True)
    assert (verified.fault_count, verified.state) == (0, "complete")
    assert report.pages_resumed_at + report.pages_staged in (0, verified.page_count)
    return report.outcome


def random_delays(seconds: float, count: int, seed: int) -> list[float]:
    """Moments spread over a staging, one in each of `count` equal parts of it, at random within its part."""
    draw = random.Random(seed)
    return [seconds * (part + draw.random()) / count for part in range(count)]
