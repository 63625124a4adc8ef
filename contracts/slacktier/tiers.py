# SPDX-License-Identifier: Apache-2.0
"""The names of the tiers. The GPU row cache is no tier."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Tier(StrEnum):
    """Where a table's pages live. `emulated` is DRAM whose answers a delay model holds back."""

    DRAM = "dram"
    NVME = "nvme"
    RDMA = "rdma"
    TCP = "tcp"
    EMULATED = "emulated"


REMOTE_TIERS: Final = frozenset({Tier.RDMA, Tier.TCP})  # of another node's memory: an address instead of paths
