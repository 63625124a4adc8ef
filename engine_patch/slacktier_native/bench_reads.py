# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench reads`: bursts of random page reads, ours against fio, preadv threads, mmap and a peer, interleaved.

A burst is what a decode step asks for: so many distinct pages at once, over when the last one is checked. fio reads
the same file with io_uring and O_DIRECT, iodepth = iodepth_batch_submit = iodepth_batch_complete_min =
min(pages, 256), so that it works in bursts as well. Our figures include the checks of every record; fio checks nothing.
`uring` waits as soon as it has begun and so does its first 64 reads itself; `uring-readers` leaves all to the reader
threads, as an engine does that computes meanwhile.

CPU is given twice. A process's own leaves out what the kernel does for it while it sleeps: interrupts, and requests
that whoever completes one hands to the device. The whole machine's holds that, and all else that runs there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, SUPERBLOCK_PAGES
from slacktier.region import open_region
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec

DEPTH_MAX: Final = 256
PAGES: Final = (50, 200, 750, 3000)
PEER: Final = "engramdb"
PREPARED_PAGES: Final = 15_000  # drawn ahead, so that drawing is no part of the machine's CPU
FIO_STARTS_S: Final = 0.25
PageIds = np.ndarray[Any, np.dtype[np.int64]]


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Arm:
    """burst reads what prepare, outside the measured time, made of distinct page ids; after, outside as well, makes the
    device be read the next time too."""

    prepare: Callable[[PageIds], Any]
    burst: Callable[[Any], object]
    after: Callable[[], None] = _nothing


@dataclass
class Samples:
    """One arm's bursts of one size: seconds each, CPU seconds of the process, and of the machine for so many pages."""

    bursts_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    machine_cpu_s: float = 0.0
    machine_pages: int = 0
    block_iops: list[float] = field(default_factory=list)

    def summary(self, pages: int) -> dict[str, float]:
        return {
            "iops": statistics.median(self.block_iops),
            "burst_ms_p50": float(np.percentile(self.bursts_s, 50)) * 1e3,
            "burst_ms_p99": float(np.percentile(self.bursts_s, 99)) * 1e3,
            "cpu_us_per_page": self.cpu_s / (len(self.bursts_s) * pages) * 1e6,
            "machine_cpu_us_per_page": self.machine_cpu_s / max(1, self.machine_pages) * 1e6,
        }


def _machine_busy_s() -> float:
    """Processor time of all that ran since the start, interrupts included; the kernel counts it in ticks of 10 ms."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _reads_done(path: Path) -> int:
    """Reads that the file's device completed, whoever asked for them."""
    found = path.stat()
    number = found.st_rdev or found.st_dev
    return int(Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()[0])


def _run_block(arm: Arm, page_count: int, pages: int, seconds: float, rng: np.random.Generator, to: Samples) -> None:
    """Bursts of distinct random pages for so many seconds; the process's CPU is its threads' while a burst runs."""
    end, count, busy_s = time.monotonic() + seconds, 0, 0.0
    while time.monotonic() < end:
        prepared = [arm.prepare(_draw(rng, page_count, pages)) for _ in range(-(-PREPARED_PAGES // pages))]
        machine_s = _machine_busy_s()
        for wanted in prepared:
            start_cpu, start = time.process_time(), time.perf_counter()
            arm.burst(wanted)
            elapsed = time.perf_counter() - start
            to.cpu_s += time.process_time() - start_cpu
            arm.after()
            to.bursts_s.append(elapsed)
            busy_s += elapsed
            count += 1
        to.machine_cpu_s += _machine_busy_s() - machine_s
    to.machine_pages += count * pages
    to.block_iops.append(count * pages / busy_s)


def _draw(rng: np.random.Generator, page_count: int, pages: int) -> PageIds:
    """Distinct pages; a repeat of one drawn before would be served without a read."""
    drawn = np.unique(rng.integers(0, page_count, pages + pages // 8 + 8))
    while drawn.size < pages:
        drawn = np.unique(np.append(drawn, rng.integers(0, page_count, pages)))
    return rng.permutation(drawn)[:pages]


def _fio_block(path: Path, pages: int, seconds: float, to: Samples) -> None:
    """The same from fio; burst times from its latency log, completion order, one group per burst."""
    depth = min(pages, DEPTH_MAX)
    with tempfile.TemporaryDirectory() as directory:
        prefix = Path(directory) / "lat"
        command = [
            "fio", "--name=burst", f"--filename={path}", "--readonly", "--direct=1", "--rw=randread", "--bs=4k",
            "--ioengine=io_uring", f"--iodepth={depth}", f"--iodepth_batch_submit={depth}",
            f"--iodepth_batch_complete_min={depth}", "--randrepeat=0", "--time_based", f"--runtime={seconds}",
            "--output-format=json", f"--write_lat_log={prefix}",
        ]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as fio:
            # Its start and its end are not what is measured: only what happens in between, by the device's own count.
            time.sleep(FIO_STARTS_S)
            machine_s, reads = _machine_busy_s(), _reads_done(path)
            time.sleep(max(0.05, seconds - 2 * FIO_STARTS_S))
            to.machine_cpu_s += _machine_busy_s() - machine_s
            to.machine_pages += _reads_done(path) - reads
            said, wrong = fio.communicate()
        if fio.returncode != 0:
            raise ConfigError(f"fio on {path}: exit code {fio.returncode}: {wrong.strip()[:200]}")
        job = json.loads(said)["jobs"][0]
        log = np.loadtxt(f"{prefix}_lat.1.log", delimiter=",", usecols=1, ndmin=1)
    ran_s = job["read"]["runtime"] / 1e3
    to.block_iops.append(float(job["read"]["iops"]))
    to.cpu_s += (job["usr_cpu"] + job["sys_cpu"]) / 100 * ran_s
    group_s = log[: log.size // depth * depth].reshape(-1, depth).max(axis=1) / 1e9
    groups = -(-pages // depth)
    to.bursts_s += [float(s) for s in group_s[: group_s.size // groups * groups].reshape(-1, groups).sum(axis=1)]


@contextmanager
def _core_arm(path: Path, backend: str, *, own_reads: bool = False) -> Iterator[Arm]:
    setup = LayerSetup(_layer_id(path), (SourceSpec(Tier.NVME, (path,)),))
    with LookupCore([setup], backend=backend, own_reads=own_reads) as core:
        rows_per_page = core.superblock(0).rows_per_page

        def burst(row_ids: list[PageIds]) -> None:
            core.begin(row_ids)
            core.wait(0)
            core.end()

        yield Arm(lambda page_ids: [page_ids * rows_per_page], burst)


def _layer_id(path: Path) -> int:
    with open_region([path]) as region:
        return region.superblock.layer_id


def _offsets(page_ids: PageIds) -> PageIds:
    return (page_ids + SUPERBLOCK_PAGES) * PAGE_BYTES


@contextmanager
def _mmap_arm(path: Path, *, willneed: bool) -> Iterator[Arm]:
    """What a page-cache design does, with the file's page cache dropped between bursts."""
    fd = os.open(path, os.O_RDONLY)
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapping:
        mapping.madvise(mmap.MADV_RANDOM)

        def burst(offsets: PageIds) -> None:
            for offset in offsets.tolist() if willneed else ():
                mapping.madvise(mmap.MADV_WILLNEED, offset, PAGE_BYTES)
            np.frombuffer(mapping, np.uint8)[offsets].sum()

        def evict() -> None:
            mapping.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

        evict()
        yield Arm(_offsets, burst, evict)
    os.close(fd)


@contextmanager
def _peer_arm(path: Path, reader: Any) -> Iterator[Arm]:
    """A page reader of engramdb-python 0.3.0: buffered, since it fails on O_DIRECT descriptors; checks nothing."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def evict() -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    evict()
    try:
        yield Arm(
            lambda ids: ([fd] * ids.size, _offsets(ids).tolist()), lambda wanted: reader.read_pages(*wanted), evict
        )
    finally:
        os.close(fd)


def _open_arms(path: Path, stack: ExitStack) -> tuple[dict[str, Arm], dict[str, str]]:
    """(arms beside fio, how to get those that cannot run here)."""
    arms = {
        "uring": _core_arm(path, "uring", own_reads=True),
        "uring-readers": _core_arm(path, "uring"),
        "preadv": _core_arm(path, "posix"),
        "mmap": _mmap_arm(path, willneed=False),
        "mmap-willneed": _mmap_arm(path, willneed=True),
    }
    absent = {}
    if importlib.util.find_spec(PEER) is None:
        absent[PEER] = "not installed: pip install engramdb-python"
    else:
        peer = importlib.import_module(PEER)
        arms[PEER] = _peer_arm(path, peer.PageReader())
        arms[f"{PEER}-uring"] = _peer_arm(path, peer.IoUringPageReader())
    return {name: stack.enter_context(arm) for name, arm in arms.items()}, absent


def run(
    path: Path, *, pages: tuple[int, ...] = PAGES, blocks: int = 5, seconds: float = 1.5, seed: int = 1
) -> dict[str, Any]:
    """Measure all arms on one region file in interleaved blocks.

    returns  {"steps": [{"pages", "iops_ratio_to_fio", "p99_ratio_to_fio", "cpu_ratio_to_fio",
             "machine_cpu_ratio_to_fio", "arms": {...}}],
             "not_run": {arm: what it takes}}
    raises   ConfigError if fio is not installed, the region does not open or a burst has more pages than it
    """
    if shutil.which("fio") is None:
        raise ConfigError("fio is not installed", hint="apt-get install fio")
    with open_region([path]) as region:
        page_count = region.superblock.page_count
    if max(pages) > page_count:
        raise ConfigError(f"{path}: bursts of {max(pages)} distinct pages, the region has {page_count}")
    rng = np.random.default_rng(seed)
    steps = []
    with ExitStack() as stack:
        arms, absent = _open_arms(path, stack)
        for count in pages:
            samples = {name: Samples() for name in ("fio", *arms)}
            for _ in range(blocks):
                for name in rng.permutation(list(samples)):
                    if name == "fio":
                        _fio_block(path, count, seconds, samples["fio"])
                    else:
                        _run_block(arms[name], page_count, count, seconds, rng, samples[name])
            steps.append(_compare(count, {name: s.summary(count) for name, s in samples.items()}))
    return {"path": str(path), "blocks": blocks, "seconds": seconds, "seed": seed, "steps": steps, "not_run": absent}


def _compare(pages: int, arms: dict[str, dict[str, float]]) -> dict[str, Any]:
    ours, fio = arms["uring"], arms["fio"]
    return {
        "pages": pages,
        "iops_ratio_to_fio": ours["iops"] / fio["iops"],
        "p99_ratio_to_fio": ours["burst_ms_p99"] / fio["burst_ms_p99"],
        "cpu_ratio_to_fio": ours["cpu_us_per_page"] / fio["cpu_us_per_page"],
        "machine_cpu_ratio_to_fio": ours["machine_cpu_us_per_page"] / max(fio["machine_cpu_us_per_page"], 1e-9),
        "arms": arms,
    }
