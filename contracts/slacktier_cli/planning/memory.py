# SPDX-License-Identifier: Apache-2.0
"""Host memory that a placement frees, and what to give SGLang of it."""

from __future__ import annotations

from dataclasses import dataclass

from slacktier.tiers import Tier
from slacktier.window import Decision, Problem

# Kept back of what is freed: the cache directory, pinned pages in flight and the allocator's slack.
RESERVE = 0.02
# Tables on these tiers sit in this node's memory; the emulated tier is DRAM too.
_LOCAL = (Tier.DRAM, Tier.EMULATED)


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Bytes of this node's host memory, all ranks together.

    stock_bytes   the tables as an engine keeps them in host memory
    table_bytes   tables that stay in host memory; cache_bytes: second-level cache that the plan uses
    hicache_size_gb   for SGLang's --hicache-size: decimal GB of one rank
    """

    stock_bytes: int
    table_bytes: int
    cache_bytes: int
    ranks: int

    @property
    def freed_bytes(self) -> int:
        """Below zero where the plan needs more than the stock engine does."""
        return self.stock_bytes - self.table_bytes - self.cache_bytes

    @property
    def hicache_size_gb(self) -> int:
        return max(0, int(self.freed_bytes * (1 - RESERVE) / 1e9 / self.ranks))


def host_memory(problem: Problem, decision: Decision) -> HostMemory:
    """What the decision leaves in host memory and what it frees; of a refused one nothing is freed."""
    stock = sum(layer.raw_bytes for layer in problem.layers)
    layers = {layer.layer_id: layer for layer in problem.layers}
    kept = sum(layers[x.layer_id].table_bytes for x in decision.layers if x.tier in _LOCAL)
    cache = sum(x.host_cache_rows * layers[x.layer_id].row_bytes for x in decision.layers) * problem.ranks
    if not decision.layers:
        kept = stock
    return HostMemory(stock, kept, cache, problem.ranks)
