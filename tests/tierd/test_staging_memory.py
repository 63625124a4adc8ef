# SPDX-License-Identifier: Apache-2.0
"""Staging inside a memory cgroup: not killed, and the page cache of the cgroup stays small, because reads and writes
go past it. SLACKTIER_STAGE_BYTES sets the table's size (8 GiB in a full run, 192 MiB here)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

STAGE_BYTES = int(os.environ.get("SLACKTIER_STAGE_BYTES", str(192 << 20)))
LIMIT_BYTES = 640 << 20
CACHE_BYTES_MAX = 256 << 20
pytestmark = pytest.mark.timeout(120 + STAGE_BYTES // (20 << 20))


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A cgroup with a memory limit; skips, saying what it needs, where none can be made."""
    for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/memory")):
        made = root / f"slacktier-{os.getpid()}"
        try:
            made.mkdir()
        except OSError:
            continue
        limit = made / ("memory.max" if (made / "memory.max").exists() else "memory.limit_in_bytes")
        if limit.exists():
            limit.write_text(str(LIMIT_BYTES))
            yield made
            made.rmdir()
            return
        made.rmdir()
    pytest.skip("needs leave to make a memory cgroup: root with a writable /sys/fs/cgroup")


def _cache_bytes(cgroup: Path) -> int:
    fields = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    return int(fields.get("file", fields.get("cache", "0")))


def test_staging_is_not_killed_and_leaves_the_page_cache_alone(cgroup: Path, tmp_path: Path) -> None:
    checkpoint, region = tmp_path / "checkpoint", tmp_path / "layer1.region"
    slacktier = str(Path(sys.executable).with_name("slacktier"))
    subprocess.run(
        [slacktier, "make-checkpoint", str(checkpoint), "--size", str(STAGE_BYTES), "--layer", "1"], check=True,
        capture_output=True,
    )  # fmt: skip
    script = f'echo $$ > {cgroup}/cgroup.procs; exec "$0" stage {checkpoint} --layer 1 --target {region} --json'
    before = _cache_bytes(cgroup)
    done = subprocess.run(["bash", "-c", script, slacktier], capture_output=True, text=True, check=False)
    grown = _cache_bytes(cgroup) - before
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["outcome"] == "staged"
    if report["direct_source"] and report["direct_target"]:
        assert grown < CACHE_BYTES_MAX
    events = cgroup / "memory.events"
    if events.exists():
        assert "oom_kill 0" in events.read_text()
