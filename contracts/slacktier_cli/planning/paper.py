# SPDX-License-Identifier: Apache-2.0
"""The paper's figures and what the rule predicts for them: `slacktier plan --paper`.

"Placing LLM Lookup Tables by Per-Layer Prefetch Deadlines", arXiv 2611.13413v1. The inputs below are figures that the
paper prints; every prediction goes through predict(), exposed_stalls() or decide(), as a user's own plan does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slacktier.tiers import Tier
from slacktier.window import (
    Device,
    Layer,
    MissCurve,
    Place,
    Problem,
    ReadModel,
    decide,
    exposed_stalls,
    predict,
)

WINDOWS_MS: Final = {1: 0.27, 14: 9.35}  # section 6.3, figure 4
CACHE_ROWS: Final = 1_000_000  # per rank, both layers
# Section 4.1: fitted on one disk that four ranks share, P counted in pages of one rank.
NVME_READ: Final = ReadModel(300, 3.05, 0.37, ranks_per_unit=4)
RDMA_READ: Final = ReadModel(230)  # section 6.8: 0.21-0.25 ms for 600-740 pages

ASSUMPTIONS: Final = (
    "s = kappa = 0: the paper prints neither; so measured rows may exceed predicted ones by that fixed cost.",
    "An uncached step reads 600 (agent) and 740 (chat) pages of each layer and rank: the ends of section 6.8's range.",
    "With a cache a layer reads its uncached pages times (1 - hit rate). Layer 1's hit rates are Table 9's; layer 14 "
    "has layer 1's at the same number of rows, since the paper says that they are similar and prints no others.",
    "Between Table 9's shares the hit rate lies on a line, from 0 without rows.",
    "Four disks, one per rank: the per-page terms are a quarter, because the fit counts one rank's pages while four "
    "ranks share the disk. Four I/O threads change nothing else.",
    "The controller's rows give no final share: it is taken as the one at which layer 1 has the hit rate printed.",
    "Tables in host memory are the baseline: their reads cost nothing beyond it.",
    "Measured slowdowns of Table 2 are its rounded percentages times the baseline step, so they are known to 0.02 ms.",
    "Windows at 8 sessions are those at 128 scaled by the step, 11 to 29.41 ms; a step there reads 190 rows, a quarter "
    "of them on each rank.",
    "k instances on one disk multiply the pages of every layer by k.",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """One column of Tables 2 and 9."""

    name: str
    pages: float
    table_2_ms: float  # baseline step
    table_9_ms: float
    hit_rates: Mapping[int, float]


AGENT: Final = Workload("agent", 600, 29.41, 29.40, {250_000: 0.81, 500_000: 0.85, 750_000: 0.86, 1_000_000: 0.87})
CHAT: Final = Workload("chat", 740, 33.71, 33.69, {250_000: 0.33, 500_000: 0.39, 750_000: 0.41, 1_000_000: 0.43})

# (layer 1's delay, layer 14's delay, measured), ms
TABLE_3: Final = ((0.4, 9, 0.12), (0.9, 9, 0.64), (0.9, 12, 2.52), (1.5, 12, 2.51), (1.5, 15, 5.46), (2.5, 15, 5.54))
TABLE_3_PAPER_MS: Final = (0.13, 0.63, 2.65, 2.65, 5.65, 5.65)

# name, disks, cache rows of layer 1 and 14, layer 1 on the disk; agent and chat slowdown in percent
_TABLE_2: Final = (
    ("Layer 1 DRAM, layer 14 on 1 disk", 1, 0, 0, False, 0.0, -0.1),
    ("Both on 1 disk", 1, 0, 0, True, 6.4, 7.2),
    ("Both on 4 disks", 4, 0, 0, True, 2.6, 2.6),
    ("Both on 1 disk, 0.5M rows on layer 14 only", 1, 0, 500_000, True, 5.6, 7.1),
    ("Both on 1 disk, 1M rows split evenly", 1, 500_000, 500_000, True, 1.2, 4.8),
    ("Both on 4 disks, 1M rows split evenly", 4, 500_000, 500_000, True, 0.7, 1.7),
)
# name, disks, layer 1's share of the cache (None: no cache), layer 1 on the disk; agent and chat step in ms
_TABLE_9: Final = (
    ("L1 DRAM, L14 1 disk, no cache", 1, None, False, 29.39, 33.67),
    ("1 disk, f=0", 1, 0.0, True, 30.85, 36.09),
    ("1 disk, f=0.25", 1, 0.25, True, 29.89, 35.60),
    ("1 disk, f=0.5", 1, 0.5, True, 29.77, 35.42),
    ("1 disk, f=0.75", 1, 0.75, True, 29.89, 35.38),
    ("1 disk, f=1", 1, 1.0, True, 29.96, 35.47),
    ("4 disks, no cache", 4, None, True, 30.09, 34.62),
    ("4 disks, f=0.5", 4, 0.5, True, 29.54, 34.22),
)
# name, layer 1's hit rate and step in ms, for agent and chat
_TABLE_9_CONTROLLER: Final = (
    ("1 disk, controller from f=0.5", (0.85, 29.92), (0.42, 35.32)),
    ("1 disk, controller from f=0", (0.69, 30.06), (0.31, 35.60)),
)


def problem_of(load: Workload, disks: int, *, instances: int = 1) -> Problem:
    """V4.1 at 128 sessions of this workload, with host memory and this many disks to choose from."""
    misses = MissCurve.from_hit_rates(load.pages, load.hit_rates)
    layers = (
        Layer(1, WINDOWS_MS[1], misses, row_count=384_006_168),
        Layer(14, WINDOWS_MS[14], misses, row_count=384_016_682),
    )
    devices = (
        Device("host", Tier.DRAM, ReadModel(0)),
        Device("nvme", Tier.NVME, NVME_READ, units=disks, instances=instances),
    )
    return Problem(layers, devices, step_ms=load.table_2_ms, ranks=4, cache_rows=CACHE_ROWS)


def _slowdown_ms(
    load: Workload, disks: int, rows_1: int, rows_14: int, *, on_disk: bool = True, share: int = 1
) -> float:
    places = [Place(1, "nvme" if on_disk else "host", rows_1), Place(14, "nvme", rows_14)]
    return predict(problem_of(load, disks, instances=share), places).slowdown_ms


def table_3() -> dict[str, Any]:
    """Both layers delayed at once: the six predictions, the paper's own and the measured ones."""
    windows = list(WINDOWS_MS.values())
    ours = [round(sum(exposed_stalls([first, second], windows)), 9) for first, second, _ in TABLE_3]
    sums = [round(sum(max(0.0, x - w) for x, w in zip(row[:2], windows, strict=True)), 9) for row in TABLE_3]
    return {
        "delays_ms": [list(row[:2]) for row in TABLE_3],
        "slowdown_ms": ours,
        "paper_ms": list(TABLE_3_PAPER_MS),
        "measured_ms": [row[2] for row in TABLE_3],
        "sum_of_excesses_ms": sums,
        "rmse_ms": rmse(ours, [row[2] for row in TABLE_3]),
    }


def table_2() -> dict[str, Any]:
    """Every row of Table 2 that reads from disk."""
    rows = []
    for name, disks, rows_1, rows_14, on_disk, *percents in _TABLE_2:
        for load, percent in zip((AGENT, CHAT), percents, strict=True):
            measured = load.table_2_ms * percent / 100
            rows.append(_row(name, load, _slowdown_ms(load, disks, rows_1, rows_14, on_disk=on_disk), measured))
    return _table(rows)


def table_9() -> dict[str, Any]:
    """Every row of Table 9 that reads from disk."""
    rows = []
    for name, disks, share, on_disk, *steps in _TABLE_9:
        first = round((share or 0.0) * CACHE_ROWS)
        second = CACHE_ROWS - first if share is not None else 0
        for load, step in zip((AGENT, CHAT), steps, strict=True):
            ours = _slowdown_ms(load, disks, first, second, on_disk=on_disk)
            rows.append(_row(name, load, ours, step - load.table_9_ms))
    for name, *both in _TABLE_9_CONTROLLER:
        for load, (hit_rate, step) in zip((AGENT, CHAT), both, strict=True):
            first = rows_with_hit_rate(load, hit_rate)
            ours = _slowdown_ms(load, 1, first, CACHE_ROWS - first)
            rows.append(_row(name, load, ours, step - load.table_9_ms))
    return _table(rows)


def rows_with_hit_rate(load: Workload, wanted: float) -> int:
    """Cache rows at which the workload's hit rate is the wanted one, on the line between Table 9's shares."""
    points = [(0, 0.0), *sorted(load.hit_rates.items())]
    for (rows0, rate0), (rows1, rate1) in itertools.pairwise(points):
        if wanted <= rate1:
            return round(rows0 + (rows1 - rows0) * (wanted - rate0) / (rate1 - rate0))
    return points[-1][0]


def other_figures() -> list[dict[str, Any]]:
    """Single figures of the text: read times of figure 4, shared disks, 8 sessions."""
    both = [Place(1, "nvme"), Place(14, "nvme")]
    split = [Place(1, "nvme", 500_000), Place(14, "nvme", 500_000)]
    uncached, cached = predict(problem_of(AGENT, 1), both), predict(problem_of(AGENT, 1), split)
    few = _at_8_sessions(NVME_READ)
    far = _at_8_sessions(RDMA_READ)
    pct = 100 / AGENT.table_2_ms
    return [
        _figure("figure 4: layer 1 NVMe read, uncached", "ms", 2.34, uncached.layers[0].read_ms),
        _figure("figure 4: layer 1 NVMe read, split cache", "ms", 0.69, cached.layers[0].read_ms),
        _figure("figure 4: layer 14 NVMe read, uncached", "ms", 3.57, uncached.layers[1].read_ms),
        _figure("6.5: 8 sessions, layer 1 on disk (0.4-0.6)", "ms", 0.5, few),
        _figure("6.5: 8 sessions, uncached RDMA, agent", "% of step", 1.8, 100 * far / 11),
        _figure(
            "6.8: 4 instances on one disk, uncached, agent",
            "% of step",
            23,
            pct * _slowdown_ms(AGENT, 1, 0, 0, share=4),
        ),
        _figure("6.8: 4 instances on one disk, split cache, agent", "% of step", 5.5, pct * _shared(1)),
        _figure("6.8: 4 instances on four disks, split cache, agent", "% of step", 2.7, pct * _shared(4)),
        _figure("6.8: both over RDMA, uncached (-0.7 to 0.0)", "% of step", 0.0, pct * _over_rdma()),
        _figure("4.2: best share for layer 1, agent", "share", 0.8, best_share(AGENT)),
        _figure("4.2: best share for layer 1, chat (near 1)", "share", 1.0, best_share(CHAT)),
    ]


def _shared(disks: int) -> float:
    return _slowdown_ms(AGENT, disks, 500_000, 500_000, share=4)


def _over_rdma() -> float:
    base = problem_of(AGENT, 1)
    problem = replace(base, devices=(Device("rdma", Tier.RDMA, RDMA_READ),))
    return predict(problem, [Place(1, "rdma"), Place(14, "rdma")]).slowdown_ms


def _at_8_sessions(read: ReadModel) -> float:
    layers = tuple(
        Layer(k, window * 11 / AGENT.table_2_ms, MissCurve.flat(190 / 4)) for k, window in WINDOWS_MS.items()
    )
    problem = Problem(layers, (Device("there", Tier.NVME, read, units=1),), step_ms=11, ranks=4)
    return predict(problem, [Place(1, "there"), Place(14, "there")]).slowdown_ms


def best_share(load: Workload) -> float:
    """Layer 1's share of the cache in the split with the smallest slowdown, both tables on one disk."""
    problem = problem_of(load, 1)
    on_disk = replace(problem, devices=tuple(x for x in problem.devices if x.name == "nvme"), slo_pct=100)
    return decide(on_disk).layers[0].cache_rows / CACHE_ROWS


def conclusions() -> list[dict[str, Any]]:
    """The paper's placements as decisions at an SLO of 1 %, NVMe the cheapest and host memory the dearest."""
    disk = Device("nvme", Tier.NVME, NVME_READ, cost_per_gib=0.1)
    host = Device("host", Tier.DRAM, ReadModel(0), cost_per_gib=4)
    rdma = Device("rdma", Tier.RDMA, RDMA_READ, cost_per_gib=2)
    base = problem_of(AGENT, 1)
    embedding = replace(base, layers=(replace(base.layers[0], layer_id=0, window_ms=0.0),))
    cases = (
        ("layer 14 on NVMe without cache, layer 1 in DRAM", replace(base, devices=(disk, host))),
        ("layer 1 with most of the cache where both are on NVMe", replace(base, devices=(disk,), slo_pct=2)),
        ("both over RDMA without cache", replace(base, devices=(rdma,))),
        ("a table at the input embedding stays in DRAM", replace(embedding, devices=(disk, rdma, host), slo_pct=50)),
    )
    found = []
    for says, problem in cases:
        decision = decide(problem)
        places = [{"layer": x.layer_id, "device": x.device, "cache_rows": x.cache_rows} for x in decision.layers]
        found.append({"paper": says, "layers": places, "sentences": [x.sentence for x in decision.layers]})
    return found


def paper_report() -> dict[str, Any]:
    """Everything that `slacktier plan --paper` prints, as one object."""
    two, nine = table_2(), table_9()
    every = two["rows"] + nine["rows"]
    return {
        "table_2": two,
        "table_3": table_3(),
        "table_9": nine,
        "nvme_rmse_ms": rmse([row["slowdown_ms"] for row in every], [row["measured_ms"] for row in every]),
        "figures": other_figures(),
        "conclusions": conclusions(),
        "assumptions": list(ASSUMPTIONS),
    }


def rmse(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(ours, theirs, strict=True)) / len(ours))


def _row(name: str, load: Workload, ours: float, measured: float) -> dict[str, Any]:
    return {"configuration": name, "workload": load.name, "slowdown_ms": ours, "measured_ms": measured}


def _table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rows": rows, "rmse_ms": rmse([row["slowdown_ms"] for row in rows], [row["measured_ms"] for row in rows])}


def _figure(name: str, unit: str, paper: float, ours: float) -> dict[str, Any]:
    return {"figure": name, "unit": unit, "paper": paper, "ours": ours}
