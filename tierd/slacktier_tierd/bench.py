# SPDX-License-Identifier: Apache-2.0
"""Staging's throughput against fio doing the same sequential read and write at once, on one disk, in one run.

A block of ours is the `stage` phase of a staging: read, hash, encode, write, and the syncs before each watermark. A
block of fio's reads the same file and writes as many bytes as the region has, both with O_DIRECT, 4 MiB blocks and as
many of them in flight, synced at its end; it hashes and encodes nothing. Blocks alternate, and so does
which arm goes first. Both write to a new file whose blocks were allocated before. Verification is timed on its own.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES
from slacktier_tierd.checkpoint import open_checkpoint
from slacktier_tierd.checkpoint_layout import v41_layout
from slacktier_tierd.checkpoint_writer import write_checkpoint
from slacktier_tierd.report import GIB, Progress, StageReport, no_progress
from slacktier_tierd.sources import SafetensorsSource
from slacktier_tierd.staging import StageOptions, stage
from slacktier_tierd.tables import Family, find_table

_BLOCK_BYTES: Final = 4 << 20


def run(
    directory: Path, *, size_bytes: int = GIB, blocks: int = 5, threads: int = 16, progress: Progress = no_progress
) -> dict[str, Any]:
    """Measure on the disk of `directory`, which needs about 2.1 * size_bytes free; nothing is left there.

    returns  per arm GiB/s of source bytes (median and each block), their ratio (median over the pairs of blocks), and
             the verification's GiB/s
    raises   ConfigError where fio is missing or fails, or the disk is too small
    """
    if shutil.which("fio") is None:
        raise ConfigError("fio is not installed", hint="apt-get install fio")
    with tempfile.TemporaryDirectory(dir=directory, prefix="slacktier-bench-") as name:
        made, target = Path(name) / "checkpoint", Path(name) / "target"
        write_checkpoint(made, v41_layout(None, bytes_max=size_bytes, layers=[1]), progress=progress)
        source = SafetensorsSource(find_table(open_checkpoint(made), 1, family=Family.V41))
        options = StageOptions(threads=threads)
        try:
            pairs = [_pair(source, target, options, ours_first=block % 2 == 0) for block in range(blocks)]
        finally:
            source.close()
    return _result(source, pairs, threads)


def _pair(
    source: SafetensorsSource, target: Path, options: StageOptions, *, ours_first: bool
) -> tuple[StageReport, float]:
    """(our report, fio's seconds), measured one after the other."""
    if ours_first:
        report = _our_block(source, target, options)
        return report, _fio_block(source, target, options.threads // 2)
    seconds = _fio_block(source, target, options.threads // 2)
    return _our_block(source, target, options), seconds


def _our_block(source: SafetensorsSource, target: Path, options: StageOptions) -> StageReport:
    report = stage(source, [target], options)
    target.unlink()
    return report


def _fio_block(source: SafetensorsSource, target: Path, depth: int) -> float:
    """Seconds until both the read and the write of the same bytes are done; depth is each one's."""
    region_bytes = source.table.superblock().page_count * PAGE_BYTES
    command = [
        "fio", "--output-format=json", "--direct=1", "--ioengine=libaio", f"--bs={_BLOCK_BYTES}", f"--iodepth={depth}",
        "--name=read", "--rw=read", f"--filename={source.table.weights[0].path}",
        "--name=write", "--rw=write", f"--filename={target}", f"--size={region_bytes}", "--end_fsync=1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    target.unlink(missing_ok=True)
    if done.returncode != 0:
        raise ConfigError(f"fio: exit code {done.returncode}: {done.stderr.strip()[:200]}")
    jobs = json.loads(done.stdout[done.stdout.index("{") :])["jobs"]
    return max(float(job["job_runtime"]) for job in jobs) / 1e3


def _result(source: SafetensorsSource, pairs: list[tuple[StageReport, float]], threads: int) -> dict[str, Any]:
    source_bytes = source.table.row_count * (source.table.payload_bytes + source.table.scale_bytes)
    ours = [report.phases["stage"].gib_s for report, _ in pairs]
    fio = [source_bytes / GIB / seconds for _, seconds in pairs]
    verify = [report.phases["verify"].gib_s for report, _ in pairs]
    return {
        "source_bytes": source_bytes,
        "threads": threads,
        "stage_gib_s": statistics.median(ours),
        "fio_gib_s": statistics.median(fio),
        "ratio_to_fio": statistics.median(a / b for a, b in zip(ours, fio, strict=True)),
        "verify_gib_s": statistics.median(verify),
        "blocks": {"stage_gib_s": ours, "fio_gib_s": fio, "verify_gib_s": verify},
    }
