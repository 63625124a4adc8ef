# SPDX-License-Identifier: Apache-2.0
"""Delay models of the emulated tier: when a device would have delivered a step's pages.

release = arrival + a + b * own pages + c * other pages, on one queue per device name that all processes share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from slacktier.errors import ConfigError

DELAY_US_MAX: Final = 60e6  # a minute; ST_DELAY_US_MAX in slacktier_io.h


@dataclass(frozen=True, slots=True)
class DelayModel:
    """Read time of one layer's pages in one step, in microseconds.

    a_us  fixed part; b_us per page of this layer; c_us per page that another layer has queued behind it
    """

    name: str
    a_us: float
    b_us: float
    c_us: float

    def __post_init__(self) -> None:
        for field, value in (("a_us", self.a_us), ("b_us", self.b_us), ("c_us", self.c_us)):
            if not math.isfinite(value) or not 0 <= value <= DELAY_US_MAX:
                raise ConfigError(f"delay model {self.name}: {field} is {value}, expected 0 to {DELAY_US_MAX:g}")


# The paper's fit, section 4.1: P counts one rank's pages while four ranks share the disk; with a disk per
# rank the per-page terms are a quarter. RDMA: 0.21-0.25 ms for 600-740 pages, section 6.8.
SHIPPED: Final[dict[str, DelayModel]] = {
    model.name: model
    for model in (
        DelayModel("paper-nvme-shared", 300.0, 3.05, 0.37),
        DelayModel("paper-nvme-per-rank", 300.0, 3.05 / 4, 0.37 / 4),
        DelayModel("paper-rdma", 230.0, 0.0, 0.0),
    )
}
