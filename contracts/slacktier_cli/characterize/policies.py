# SPDX-License-Identifier: Apache-2.0
"""Cache policies x cache sizes over one schedule: hit rates of decode lookups and pages per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.cache_policy import CachePolicy
from slacktier_cli.characterize.lookups import Lookups
from slacktier_cli.characterize.schedule import Schedule
from slacktier_native.cache_sim import Phase, Stream

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]


class Policy(StrEnum):
    """How a row cache chooses what to keep.

    clock16 and s3fifo16 are the row cache's own directory, in sets of 16 ways. clock and s3fifo are one queue over all
    rows; static is the hot set of other sessions.
    """

    LRU = "lru"
    CLOCK = "clock"
    CLOCK16 = "clock16"
    S3FIFO = "s3fifo"
    S3FIFO16 = "s3fifo16"
    STATIC = "static"


DYNAMIC = (Policy.LRU, Policy.CLOCK, Policy.CLOCK16, Policy.S3FIFO, Policy.S3FIFO16)
OF_THE_ROW_CACHE: Final = {Policy.CLOCK16: CachePolicy.CLOCK, Policy.S3FIFO16: CachePolicy.S3FIFO}


@dataclass(frozen=True)
class Curve:
    """One policy at every cache size.

    rows            cache rows of the layer, all ranks together
    hit_rate        [sizes] share of decode lookups that hit; a row asked for again in the same step is a hit
    hit_rate_all    [sizes] the same of all lookups, prefill too
    hit_rate_by_order  [orders, sizes], order n - 2
    pages_per_step  [sizes] 4 KiB pages that a full step's decode lookups read, all ranks together
    """

    policy: Policy
    rows: tuple[int, ...]
    hit_rate: F64
    hit_rate_all: F64
    hit_rate_by_order: F64
    pages_per_step: F64


@dataclass(frozen=True)
class Load:
    """What a schedule asks of a layer without a cache.

    sessions         at a time
    lookups          of the whole schedule
    decode_lookups   those of them that are decode
    tokens_per_step  decode tokens of a full step
    uncached_pages   distinct rows of a full step: what it reads with no cache at all
    """

    sessions: int
    lookups: int
    decode_lookups: int
    tokens_per_step: float
    uncached_pages: float


def load_of(lookups: Lookups, schedule: Schedule, skip: npt.NDArray[np.uint8] | None = None) -> Load:
    """skip [keys] uint8 marks rows that are never read, so that no page is counted for them."""
    full = schedule.full_steps()
    _, distinct = lookups.stream(schedule.order, skip).distinct(schedule.steps, Phase.DECODE)
    tokens, per_step = int(schedule.decode_tokens.sum()), schedule.decode_tokens_per_step
    uncached = float(distinct[full].mean()) / lookups.rate if full.any() else 0.0
    return Load(
        sessions=schedule.slots,
        lookups=len(schedule.order) * lookups.columns,
        decode_lookups=tokens * lookups.columns,
        tokens_per_step=per_step,
        # A sample may hold a little more than its share; no step reads more rows than it looks up.
        uncached_pages=min(uncached, per_step * lookups.columns),
    )


def simulate(
    lookups: Lookups,
    schedule: Schedule,
    load: Load,
    policies: Sequence[Policy],
    rows: Sequence[int],
    *,
    threads: int,
    skip: npt.NDArray[np.uint8] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[Curve]:
    """Curves of the dynamic policies, `threads` simulations at a time; skip [keys] marks rows that cost nothing."""
    stream = lookups.stream(schedule.order, skip)
    sizes = [lookups.sampling.scaled(size) for size in rows]

    def single(policy: Policy, size: int) -> U64:
        if policy in OF_THE_ROW_CACHE:
            return stream.directory(size, lookups.rows, OF_THE_ROW_CACHE[policy])
        return stream.clock(size) if policy is Policy.CLOCK else stream.s3fifo(size)

    with ThreadPoolExecutor(threads) as pool:
        # The largest caches take longest and start first.
        jobs = {(p, s): pool.submit(single, p, s) for p in policies if p is not Policy.LRU for s in reversed(sizes)}
        lru = pool.submit(stream.lru, sizes) if Policy.LRU in policies else None
        for job in [*jobs.values(), *([lru] if lru else [])]:
            job.add_done_callback(lambda _: advance())
        misses: dict[Policy, U64] = {}
        for policy in policies:
            parts = [jobs[policy, size].result() for size in sizes] if policy is not Policy.LRU else []
            misses[policy] = lru.result() if lru and not parts else np.stack(parts)
    return [curve_of(policy, tuple(rows), misses[policy], lookups, load) for policy in policies]


def simulation_count(policies: Sequence[Policy], sizes: int) -> int:
    """How often simulate() calls advance."""
    return sum(1 if policy is Policy.LRU else sizes for policy in policies)


def curve_of(policy: Policy, rows: tuple[int, ...], misses: U64, lookups: Lookups, load: Load) -> Curve:
    """misses [sizes, phases, classes] of the sample, as rates over all lookups."""
    counted = misses[:, :, : lookups.orders].astype(np.float64) / lookups.rate
    decode = counted[:, 1]
    per_order = max(load.decode_lookups / lookups.orders, 1)
    miss_rate = decode.sum(axis=1) / max(load.decode_lookups, 1)
    pages = miss_rate * load.tokens_per_step * lookups.columns
    return Curve(
        policy=policy,
        rows=rows,
        hit_rate=np.clip(1 - miss_rate, 0, 1),
        hit_rate_all=np.clip(1 - counted.sum(axis=(1, 2)) / max(load.lookups, 1), 0, 1),
        hit_rate_by_order=np.clip(1 - decode.T / per_order, 0, 1),
        # A cache that is smaller than a step may read a row twice in it; the engine asks once per step.
        pages_per_step=np.minimum(pages, load.uncached_pages),
    )


def never_evicted(stream: Stream) -> U64:
    """Misses of a cache that holds everything, [phases, classes]: lookups whose row nothing used before."""
    return stream.clock(max(stream.key_count, 1))
