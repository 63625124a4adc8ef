# SPDX-License-Identifier: Apache-2.0
"""What `bench decode` measures: cells, their sources, and the emulated devices' delay models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError

# source name -> delay model; None: as fast as it is. nvme-delay-N: N disks for the four ranks of a node.
SOURCES: Final[dict[str, DelayModel | None]] = {
    "dram": None,
    "rdma-delay": SHIPPED["paper-rdma"],
    "nvme-delay-1": SHIPPED["paper-nvme-shared"],
    "nvme-delay-4": SHIPPED["paper-nvme-per-rank"],
    "zram": None,
    "disk": None,
    "tcp": None,
}
REGION_SOURCES: Final = ("zram", "disk", "tcp")  # need a place for a region: --region NAME=PATH
FORM: Final = "TRACE:TOKENS:TP:SOURCE+SOURCE...[:W1_MS:W14_MS:STEP_MS][@OPTION+OPTION...]"

# The paper's step of 128 tokens: windows of layers 1 and 14, and the whole step, in ms.
_WINDOWS_MS: Final = (0.27, 9.35, 29.4)


@dataclass(frozen=True)
class CellSpec:
    """One workload on one or more sources; each source becomes a cell.

    trace       name of a trace file without its ending
    window_ms   compute time before layers 1 and 14; step_ms of the whole step
    split       layer 1's share of the row cache
    cached      False: no row cache at all
    second      layer 14's source where it is another than layer 1's
    far_first   layer 14's reads before layer 1's
    dedup       a missing row is read once per step
    hit, pages  rows of a rank's layer and step that are distinct, and the share of these that a warm set holds: ids
                are then drawn, not taken from the trace
    on_demand   each layer's lookups begin where it needs them
    eager       no graph
    options     these, as they were written; "" for a plain cell
    """

    trace: str
    tokens: int
    tp: int
    sources: tuple[str, ...]
    window_ms: tuple[float, float] = _WINDOWS_MS[:2]
    step_ms: float = _WINDOWS_MS[2]
    split: float = 0.5
    cached: bool = True
    second: str = ""
    far_first: bool = False
    dedup: bool = True
    hit: float | None = None
    pages: int = 0
    on_demand: bool = False
    eager: bool = False
    options: str = ""


def parse_cell(text: str) -> CellSpec:
    """A cell from its FORM; raises ConfigError saying which part is wrong."""
    plain, _, options = text.partition("@")
    parts = plain.split(":")
    if len(parts) not in (4, 7):
        raise ConfigError(f"cell {text!r}: {len(parts)} parts, expected {FORM}")
    sources = tuple(parts[3].split("+"))
    for source in sources:
        _check_source(text, source)
    try:
        tokens, tp = int(parts[1]), int(parts[2])
        first, second, step = (float(p) for p in parts[4:]) if len(parts) == 7 else _WINDOWS_MS
    except ValueError as exc:
        raise ConfigError(f"cell {text!r}: {exc}") from exc
    if not 1 <= tokens <= 1024 or not 1 <= tp <= 64:
        raise ConfigError(f"cell {text!r}: {tokens} tokens on tp {tp}, expected 1 to 1024 and 1 to 64")
    if not 0 < first < second < step:
        raise ConfigError(f"cell {text!r}: windows {first}, {second} of a step of {step} ms, expected to rise")
    spec = CellSpec(parts[0], tokens, tp, sources, (first, second), step, options=options)
    for option in filter(None, options.split("+")):
        spec = _with_option(text, spec, option)
    if (spec.hit is None) != (spec.pages == 0):
        raise ConfigError(f"cell {text!r}: hit and pages go together")
    return spec


def _check_source(text: str, source: str) -> None:
    if source not in SOURCES:
        raise ConfigError(f"cell {text!r}: source {source!r}, expected one of {', '.join(SOURCES)}")


def _with_option(text: str, spec: CellSpec, option: str) -> CellSpec:
    name, _, value = option.partition("=")
    try:
        match name:
            case "split" if 0 <= float(value) <= 1:
                return replace(spec, split=float(value))
            case "hit" if 0 <= float(value) <= 1:
                return replace(spec, hit=float(value))
            case "pages" if 0 < int(value) <= spec.tokens * 24 // spec.tp:
                return replace(spec, pages=int(value))
            case "second":
                _check_source(text, value)
                return replace(spec, second=value)
            case "no-cache" if not value:
                return replace(spec, cached=False)
            case "no-dedup" if not value:
                return replace(spec, dedup=False)
            case "far-first" if not value:
                return replace(spec, far_first=True)
            case "on-demand" if not value:
                return replace(spec, on_demand=True)
            case "eager" if not value:
                return replace(spec, eager=True)
    except ValueError as exc:
        raise ConfigError(f"cell {text!r}: option {option!r}: {exc}") from exc
    raise ConfigError(f"cell {text!r}: option {option!r} is none, or out of its range")


_SHORT: Final = ":0.27:1.8:2.6"  # the same first window; layers after 14 and most before it left out
DEFAULT_CELLS: Final = (
    f"agent:8:1:dram+rdma-delay{_SHORT}",
    f"agent:32:1:dram+rdma-delay{_SHORT}",
    f"agent:128:1:dram+rdma-delay{_SHORT}",
    f"agent:256:1:dram+rdma-delay{_SHORT}",
    f"chat:128:1:dram+rdma-delay{_SHORT}",
    f"agent:128:1:zram+disk+tcp{_SHORT}",
    f"agent:128:1:dram{_SHORT}@on-demand",
    f"agent:128:1:dram{_SHORT}@eager",
    "agent:8:4:rdma-delay:0.10:3.5:11",
    "agent:128:4:nvme-delay-1+nvme-delay-4@hit=0.85+pages=600",
    "chat:128:4:nvme-delay-1+nvme-delay-4:0.27:9.35:33.7@hit=0.39+pages=740",
    "agent:128:4:nvme-delay-1+nvme-delay-4",
    "chat:128:4:nvme-delay-1+nvme-delay-4:0.27:9.35:33.7",
    "agent:128:4:nvme-delay-1@split=0",
    "agent:128:4:dram@second=nvme-delay-1+no-cache",
    "agent:128:4:nvme-delay-1@far-first",
    "agent:128:4:nvme-delay-1@no-dedup",
    "agent:128:1:dram+rdma-delay",
)
