# SPDX-License-Identifier: Apache-2.0
"""Settings of the head, read once from the command line and then fixed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Decider(StrEnum):
    """Who binds instances: tierd by itself with decide(), or an operator that PUTs bindings."""

    TIERD = "tierd"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The head.

    state_path      SQLite file; its directory is for this user alone
    tick_s          how often what is wanted is compared with what is so; changes are acted on at once
    look_s          how often devices and regions are looked at when nothing changes
    advertise       address that memory nodes of the head's own node are told to peers by; members may name their own
    lease_s         a memory node that no head has asked about for so long ends by itself
    requests_per_s  of one caller; bursts of twice as many
    watches_max     open watches and waiting lists, all callers together
    """

    state_path: Path
    host: str = "127.0.0.1"
    port: int = 8700
    decider: Decider = Decider.TIERD
    tick_s: float = 0.5
    look_s: float = 3.0
    advertise: str = "127.0.0.1"
    lease_s: float = 3600.0
    requests_per_s: float = 500.0
    watches_max: int = 8192
    body_timeout_s: float = 10.0
    tls_cert: Path | None = None
    tls_key: Path | None = None
