# SPDX-License-Identifier: Apache-2.0
"""The decode side: pulls a request's rows and fills the cache before the first decode step; whatever fails, the tier
answers. A seed only ever changes where rows come from and when, never what they are."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ContractError, SlackTierError, TierError
from slacktier_native.core import LookupCore
from slacktier_seeding.client import Pulled, pull

LIMIT_S: Final = 0.25
RowIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Seed:
    """What came for one request, by layer id; `faults` says why a layer's rows did not."""

    pulled: Mapping[int, Pulled]
    faults: Mapping[int, SlackTierError]
    seconds: float


@dataclass(frozen=True, slots=True)
class SeedAddress:
    """A prefill instance's seed server, as tierd tells it to a bound instance."""

    host: str
    port: int
    token: bytes


class Seeder:
    """Pulls off the stepping thread, fills on it.

    limit_s  how long a pull may take, all layers together: the request goes on without its rows after that
    """

    def __init__(self, core: LookupCore, *, limit_s: float = LIMIT_S) -> None:
        self._core, self._limit_s = core, limit_s
        self._pool = ThreadPoolExecutor(len(core.layer_ids), thread_name_prefix="seed")
        self.rows_asked = self.rows_pulled = self.rows_kept = 0
        self.fault_counts: Counter[str] = Counter()

    def pull(self, at: SeedAddress, room: int, row_ids: Sequence[RowIds]) -> Seed:
        """All layers' rows at once; row_ids is one array per layer, as begin() takes them. Never raises for a peer."""
        start_s = time.monotonic()
        deadline_s = start_s + self._limit_s
        started = {
            layer_id: self._pool.submit(
                pull, (at.host, at.port), at.token, self._core.superblock(index), room, row_ids[index],
                deadline_s=deadline_s,
            )
            for index, layer_id in enumerate(self._core.layer_ids)
            if (row_ids[index] >= 0).any()
        }  # fmt: skip
        self.rows_asked += sum(int(np.unique(ids[ids >= 0]).size) for ids in row_ids)  # while the pulls are out
        pulled, faults = {}, {}
        for layer_id, future in started.items():
            try:
                pulled[layer_id] = future.result()
            except (TierError, ContractError) as exc:
                faults[layer_id] = exc
        return Seed(pulled, faults, time.monotonic() - start_s)

    def fill(self, seed: Seed) -> int:
        """Between steps, on the stepping thread: rows that the cache has now. A damaged seed counts as none."""
        kept = 0
        faults = dict(seed.faults)
        for layer_id, rows in seed.pulled.items():
            try:
                index = self._core.layer_ids.index(layer_id)
                kept += self._core.seed(index, rows.sent, rows.row_ids, rows.records)
                self.rows_pulled += len(rows.row_ids)
            except ContractError as exc:
                faults[layer_id] = exc
        self.fault_counts.update(type(exc).__name__.removesuffix("Error") for exc in faults.values())
        self.rows_kept += kept
        return kept

    def close(self) -> None:
        """Wait for pulls that are still out, each for limit_s at most; idempotent."""
        self._pool.shutdown()
