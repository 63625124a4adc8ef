# SPDX-License-Identifier: Apache-2.0
"""What the step path must survive: captures beside other work, stalled reads, many replays, control. No timing."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from slacktier.delay import DelayModel
from slacktier.errors import DeadlineMissedError, SlackTierError
from slacktier_engine import driver
from slacktier_engine.decode_bench.arms import COLUMNS, PathArm, PathSetup
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS
from slacktier_engine.decode_bench.device import Graph
from slacktier_engine.decode_bench.run import DecodeBench, log
from slacktier_native.core import set_delay
from slacktier_native.memory_table import map_memory
from slacktier_native.sources import MemorySpec

_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_STALLED_US: Final = 30e6
_SPREAD: Final = 2654435761  # odd: ids of successive steps look random and are the same on every run


class Lookups:
    """Captured steps without compute, of several batch sizes over one path; ids change from replay to replay."""

    def __init__(self, bench: DecodeBench, *, cache_rows: int, timeout_s: float = 10.0) -> None:
        self.bench = bench
        setup = PathSetup(
            max(_SIZES), (cache_rows, cache_rows), lookups_max=max(_SIZES) * COLUMNS, timeout_s=timeout_s,
            readers=bench.settings.readers, cpus=bench.cpus,
        )  # fmt: skip
        self.arm = PathArm("checks", bench.memory("dram"), setup, bench.device)
        shape = (max(_SIZES), len(LOOKUP_LAYERS), COLUMNS)
        self.ids = torch.arange(max(_SIZES) * 2 * COLUMNS, device=bench.device.torch).reshape(shape).contiguous()

    def queue(self, tokens: int) -> torch.Tensor:
        """One step: new ids, both layers' rows. A third of the ids stay, so that there are hits."""
        ids = self.ids[:tokens]
        moved = torch.remainder(ids * _SPREAD + 12345, self.bench.table.row_count)
        ids.copy_(torch.where(torch.remainder(ids, 3) == 0, ids, moved))
        self.arm.begin(ids)
        for index in range(len(LOOKUP_LAYERS)):
            self.arm.layer(index, ids)
        return ids

    def capture(self, tokens: int) -> Graph:
        self.arm.path.arm()
        return self.bench.device.capture(lambda: self.queue(tokens), warm_ups=1)

    def run(self, graph: Graph) -> None:
        self.arm.path.arm()
        graph.replay()

    def compare(self, tokens: int) -> int:
        """Rows of the last step that differ from the stock kernel's."""
        return self.bench.checker.compare(self.ids[:tokens], self.arm.out, tp=1)

    def close(self) -> None:
        self.bench.device.synchronize()
        self.arm.close()


def captures(bench: DecodeBench, count: int = 50) -> dict[str, Any]:
    """Captures while another thread registers memory and copies on a stream of its own; each graph is then replayed."""
    lookups = Lookups(bench, cache_rows=20_000)
    stop, rounds, failed = threading.Event(), [0], []

    def disturb() -> None:
        torch.cuda.set_device(bench.device.torch)
        memory = map_memory(8 << 20)
        stream = torch.cuda.Stream()
        target = torch.empty(8 << 20, dtype=torch.uint8, device=bench.device.torch)
        try:
            with driver.allowed_during_capture():
                while not stop.is_set():
                    driver.pin(memory.ctypes.data, memory.nbytes)
                    driver.copy_to_device(stream.cuda_stream, target.data_ptr(), memory.ctypes.data, memory.nbytes)
                    stream.synchronize()
                    driver.unpin(memory.ctypes.data)
                    rounds[0] += 1
        except SlackTierError as exc:
            failed.append(str(exc))

    thread = threading.Thread(target=disturb)
    thread.start()
    done, wrong = 0, 0
    try:
        for _ in range(count):
            graph = lookups.capture(32)
            lookups.run(graph)
            wrong += lookups.compare(32)
            done += 1
    finally:
        stop.set()
        thread.join()
        lookups.close()
    return {
        "captures": count,
        "succeeded": done,
        "registrations": rounds[0],
        "failed": failed,
        "mismatched_rows": wrong,
    }


def stalls(bench: DecodeBench, timeout_s: float = 2.0) -> dict[str, Any]:
    """Rows held back for 30 s in warm-up, around a capture and in steady state; the step's time-out is shorter."""
    lookups = Lookups(bench, cache_rows=0, timeout_s=timeout_s)
    device = "bench-stalled"
    lookups.arm.use([MemorySpec(bench.table.pages, device, DelayModel(device, 0, 0, 0))] * 2)
    found: dict[str, Any] = {"held_back_s": _STALLED_US / 1e6, "timeout_s": timeout_s}

    def stalled(what: str, step: Callable[[], object]) -> None:
        set_delay(device, DelayModel(device, _STALLED_US, 0, 0))
        step()
        bench.device.synchronize()
        found[what] = _raised(lookups)
        found[f"{what}_poisoned"] = bool(torch.isnan(lookups.arm.out[0][: 8 * COLUMNS].float()).all())
        set_delay(device, DelayModel(device, 0, 0, 0))
        lookups.run(steady)
        found[f"{what}_mismatched_after"] = lookups.compare(8)
        lookups.arm.path.check()

    steady = lookups.capture(8)
    lookups.arm.path.arm()
    stalled("warm_up", lambda: lookups.queue(8))
    stalled("capture", lambda: lookups.run(lookups.capture(8)))
    stalled("steady", lambda: lookups.run(steady))
    lookups.close()
    return found


def _raised(lookups: Lookups) -> str:
    try:
        lookups.arm.path.check()
    except DeadlineMissedError as exc:
        return f"{type(exc).__name__}: {exc}"
    return ""


def replays(bench: DecodeBench, count: int = 100_000, *, captures_every: int = 10_000) -> dict[str, Any]:
    """Replays with varying batch sizes, all captured anew now and then; memory before and after."""
    lookups = Lookups(bench, cache_rows=200_000)
    wrong, checked, begun = 0, 0, 0
    before: dict[str, int] = {}
    graphs: dict[int, Graph] = {}
    for at in range(count):
        if at % captures_every == 0:
            bench.device.synchronize()
            graphs = {tokens: lookups.capture(tokens) for tokens in reversed(_SIZES)}
            if at == captures_every:  # the first round's own allocations stay
                before = _memory(bench)
        tokens = _SIZES[(at * 5 + at // 8) % len(_SIZES)]
        lookups.run(graphs[tokens])
        begun += 1
        if at % 50 == 0:
            bench.device.synchronize()
        if at % 500 == 499:
            wrong += lookups.compare(tokens)
            checked += 2 * tokens * COLUMNS
    bench.device.synchronize()
    lookups.arm.path.check()
    after = _memory(bench)
    totals = lookups.arm.path.core.stats()[LOOKUP_LAYERS[0]]
    lookups.close()
    found = {
        "replays": begun, "captures": -(-count // captures_every) * len(_SIZES), "rows_checked": checked,
        "mismatched_rows": wrong, "evictions": totals["evictions"],
        "grown_bytes": {name: after[name] - before.get(name, after[name]) for name in after},
    }  # fmt: skip
    log(f"replays: {found}")
    return found


def _memory(bench: DecodeBench) -> dict[str, int]:
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    free, total = torch.cuda.mem_get_info(bench.device.torch)
    return {"host": host, "device": total - free}


def control(bench: DecodeBench, changes: int = 100) -> dict[str, Any]:
    """Sources switched, cache resized and split moved between replays of one captured graph."""
    lookups = Lookups(bench, cache_rows=40_000)
    graph = lookups.capture(64)
    names = ("dram", "rdma-delay", "nvme-delay-4")
    wrong = 0
    for change in range(changes):
        match change % 3:
            case 0:
                lookups.arm.use(bench.source(names[change // 3 % len(names)]))
            case 1:
                lookups.arm.path.set_cache_rows(0, 4000 * (change % 11))
            case 2:
                share = 4000 * (change % 10)
                lookups.arm.path.set_cache_rows(0, share)
                lookups.arm.path.set_cache_rows(1, 40_000 - share)
        for _ in range(2):
            lookups.run(graph)
            wrong += lookups.compare(64)
    lookups.arm.path.check()
    lookups.close()
    return {"changes": changes, "rows_checked": changes * 4 * 64 * COLUMNS, "mismatched_rows": wrong}


def memory(bench: DecodeBench) -> dict[str, Any]:
    """What a cache of cache_rows and a path for chunks of 8,192 tokens take, against what was asked for."""
    rows = bench.settings.cache_rows // len(LOOKUP_LAYERS)
    bench.device.synchronize()
    torch.cuda.empty_cache()
    device_before, host_before = torch.cuda.memory_allocated(bench.device.torch), _resident_bytes()
    arm = PathArm("memory", bench.memory("dram"), PathSetup(128, (rows, rows)), bench.device)
    device = torch.cuda.memory_allocated(bench.device.torch) - device_before - sum(o.nbytes for o in arm.out)
    host = _resident_bytes() - host_before
    nominal = bench.settings.cache_rows * arm.path.core.row_bytes(0)
    found = {
        "cache_over_nominal": round(arm.path.cache_bytes / nominal, 4),
        "device_bytes": arm.path.device_bytes,
        "device_allocated_over_asked": round(device / arm.path.device_bytes, 4),
        "pinned_bytes": arm.path.pinned_bytes,
        "host_bytes": host,
        "host_over_pinned": round(host / arm.path.pinned_bytes, 4),
    }
    arm.close()
    return found


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def run_check(name: str, bench: DecodeBench, check: Callable[[DecodeBench], dict[str, Any]]) -> dict[str, Any]:
    """A check's findings, said on stderr as well."""
    found = check(bench)
    log(f"{name}: {found}")
    return found
