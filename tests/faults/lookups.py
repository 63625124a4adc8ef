# SPDX-License-Identifier: Apache-2.0
"""Steps on a core of layer 1 that count what came of them; every row that is handed out is compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pattern_regions import ROWS, SEEDS

from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_native.pages import pattern_check
from slacktier_native.sources import AnySource

Ids = npt.NDArray[np.int64]


def nvme(*paths: Path) -> SourceSpec:
    return SourceSpec(Tier.NVME, paths)


def open_core(*sources: AnySource, cache_rows: int = 100, backend: str = "auto", timeout_s: float = 5.0) -> LookupCore:
    layer = LayerSetup(1, sources, cache_rows)
    return LookupCore([layer], backend=backend, lookups_max=4096, timeout_s=timeout_s)


def look_up(core: LookupCore, ids: Ids) -> None:
    """One step; raises what the step raised. A row that is not the id's fails the test."""
    core.begin([ids])
    try:
        core.wait(0)
        out = np.full((ids.size, core.row_bytes(0)), 0xEE, np.uint8)
        core.gather(0, out)
    finally:
        core.end()
    assert pattern_check(SEEDS[1], ids, out, 256, 8) == (0, -1)


@dataclass
class Outcome:
    """Steps answered, and the errors of those that were not; the longest that one took."""

    answered: int = 0
    errors: list[SlackTierError] = field(default_factory=list)
    longest_s: float = 0.0


def run_steps(
    core: LookupCore, steps: int, *, lookups: int = 200, seed: int = 0, before: Callable[[int], None] | None = None
) -> Outcome:
    """Random steps; before(step) may break or mend something."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    for step in range(steps):
        if before:
            before(step)
        start = time.monotonic()
        try:
            look_up(core, rng.integers(-1, ROWS, lookups))
            outcome.answered += 1
        except SlackTierError as exc:
            outcome.errors.append(exc)
        outcome.longest_s = max(outcome.longest_s, time.monotonic() - start)
    return outcome


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.01)
