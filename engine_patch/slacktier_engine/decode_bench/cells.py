# SPDX-License-Identifier: Apache-2.0
"""What `bench decode` measures: cells, their sources, and the emulated devices' delay models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError

# source name -> delay model; dram has none. nvme-delay-N: N disks for the four ranks of a node.
SOURCES: Final[dict[str, DelayModel | None]] = {
    "dram": None,
    "rdma-delay": SHIPPED["paper-rdma"],
    "nvme-delay-1": SHIPPED["paper-nvme-shared"],
    "nvme-delay-4": SHIPPED["paper-nvme-per-rank"],
}
LEFT_OUT: Final[dict[str, str]] = {
    "zram": "no RAM-backed block device is set up by this command",
    "disk": "a region on a disk is not measured by this command yet",
    "tcp": "no row server is started by this command",
}
FORM: Final = "TRACE:TOKENS:TP:SOURCE+SOURCE...[:W1_MS:W14_MS:STEP_MS]"

# The paper's step of 128 tokens: windows of layers 1 and 14, and the whole step, in ms.
_WINDOWS_MS: Final = (0.27, 9.35, 29.4)


@dataclass(frozen=True)
class CellSpec:
    """One workload on one or more sources; each source becomes a cell.

    trace      name of a trace file without its ending
    window_ms  compute time before layers 1 and 14; step_ms of the whole step
    """

    trace: str
    tokens: int
    tp: int
    sources: tuple[str, ...]
    window_ms: tuple[float, float]
    step_ms: float


def parse_cell(text: str) -> CellSpec:
    """A cell from TRACE:TOKENS:TP:SOURCES[:W1:W14:STEP]; raises ConfigError saying which part is wrong."""
    parts = text.split(":")
    if len(parts) not in (4, 7):
        raise ConfigError(f"cell {text!r}: {len(parts)} parts, expected {FORM}")
    sources = tuple(parts[3].split("+"))
    for source in sources:
        if source in LEFT_OUT:
            raise ConfigError(f"cell {text!r}: source {source}: {LEFT_OUT[source]}")
        if source not in SOURCES:
            raise ConfigError(f"cell {text!r}: source {source!r}, expected one of {', '.join(SOURCES)}")
    try:
        tokens, tp = int(parts[1]), int(parts[2])
        first, second, step = (float(p) for p in parts[4:]) if len(parts) == 7 else _WINDOWS_MS
    except ValueError as exc:
        raise ConfigError(f"cell {text!r}: {exc}") from exc
    if not 1 <= tokens <= 1024 or not 1 <= tp <= 64:
        raise ConfigError(f"cell {text!r}: {tokens} tokens on tp {tp}, expected 1 to 1024 and 1 to 64")
    if not 0 < first < second < step:
        raise ConfigError(f"cell {text!r}: windows {first}, {second} of a step of {step} ms, expected to rise")
    return CellSpec(parts[0], tokens, tp, sources, (first, second), step)


DEFAULT_CELLS: Final = (
    "agent:8:1:dram+rdma-delay",
    "agent:32:1:dram+rdma-delay",
    "agent:128:1:dram+rdma-delay",
    "agent:256:1:dram+rdma-delay",
    "agent:128:4:nvme-delay-1+nvme-delay-4+rdma-delay",
    "chat:128:4:nvme-delay-1+nvme-delay-4:0.27:9.35:33.7",
    "agent:8:4:dram+rdma-delay:0.10:3.5:11",
)
