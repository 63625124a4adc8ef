# SPDX-License-Identifier: Apache-2.0
"""How fast this disk serves the workload's rows, measured before the blocks, straight through the native path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.tiers import Tier
from slacktier_cli.demo.sessions import Tokens
from slacktier_cli.demo.tables import StagedTable
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_rowids.ngram import NgramHasher

_CHUNK_TOKENS: Final = 256
_SECONDS: Final = 1.0
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Probe:
    """Prompt tokens per second with no cache, and 4 KiB pages per second, for one rank with the disk to itself."""

    tokens_per_s: float
    pages_per_s: float
    backend: str
    backend_reason: str

    @property
    def text(self) -> str:
        return f"{self.pages_per_s:,.0f} random 4 KiB reads per second before the run"


def staged_layers(tables: Sequence[StagedTable]) -> list[LayerSetup]:
    """The regions as the core's layers, without a cache."""
    return [LayerSetup(table.layer_id, (SourceSpec(Tier.NVME, (table.path,)),)) for table in tables]


def probe_disk(tables: Sequence[StagedTable], hasher: NgramHasher, tokens: Tokens, *, tp: int) -> Probe:
    """Prefill chunks of the workload's tokens for about a second; tokens [n] uint32, used again when they run out."""
    rows = hasher.sequence(tokens.astype(np.int64))
    with LookupCore(staged_layers(tables), tp=tp) as core:
        token_count = page_count = 0
        began = time.perf_counter()
        while (seconds := time.perf_counter() - began) < _SECONDS:
            first = token_count % max(1, len(rows) - _CHUNK_TOKENS)
            chunk = rows[first : first + _CHUNK_TOKENS]
            page_count += _look_up(core, [chunk[:, index].reshape(-1) for index in range(len(tables))])
            token_count += len(chunk)
        return Probe(token_count / seconds, page_count / seconds, core.backend, core.backend_reason)


def _look_up(core: LookupCore, row_ids: Sequence[Ids]) -> int:
    """One step; returns the pages it read."""
    core.begin(row_ids)
    try:
        return sum(core.wait(index).pages for index in range(len(row_ids)))
    finally:
        core.end()
