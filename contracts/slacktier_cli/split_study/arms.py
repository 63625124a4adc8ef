# SPDX-License-Identifier: Apache-2.0
"""One rank's row cache under a fixed or a moving split: the real directory counts pages, the rule gives the stalls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slacktier.page import RowFormat, Superblock
from slacktier.split_controller import SplitController
from slacktier.tiers import Tier
from slacktier.window_model import Device, Layer, MissCurve, Problem, ReadModel, exposed_stalls, read_times
from slacktier_cli.characterize.lookups import row_shape
from slacktier_cli.split_study.steps import U32, Half
from slacktier_native.core import LayerSetup, LookupCore, PatternSource
from slacktier_rowids.models import Hasher

_CHUNK_TOKENS = 8192  # of a prefill, as SGLang cuts it


@dataclass(frozen=True)
class Rule:
    """What turns pages into stalls: windows in ms, and the read model of the one device under all layers."""

    windows_ms: tuple[float, ...]
    read: ReadModel
    ranks: int

    def stall_ms(self, pages: Sequence[int]) -> float:
        """The step's exposed stall, all layers together, from one rank's pages of each."""
        device = Device("disk", Tier.NVME, self.read)
        layers = tuple(Layer(i, w, MissCurve.flat(0)) for i, w in enumerate(self.windows_ms))
        problem = Problem(layers, (device,), step_ms=max(self.windows_ms) + 1, ranks=self.ranks)
        times = read_times(problem, [device] * len(pages), pages, [0.0] * len(pages))
        return sum(exposed_stalls(times, self.windows_ms))


@dataclass(frozen=True)
class ArmResult:
    """stalls: ms of every step, by half; rows: the split at the end of each half; moves: how often it changed."""

    stalls: tuple[tuple[float, ...], ...]
    rows: tuple[dict[int, int], ...]
    moves: int


def run_arm(
    hasher: Hasher, halves: Sequence[Half], rule: Rule, split: Mapping[int, int], controller: SplitController | None,
    advance: Callable[[int], None],
) -> ArmResult:  # fmt: skip
    """Serve all halves, one after the other, from a cold cache with this split; a controller moves it.

    advance  told of each step that was served
    """
    stalls: list[tuple[float, ...]] = []
    ends: list[dict[int, int]] = []
    rows, moves = dict(split), 0
    with _core(hasher, rule.ranks, split) as core:
        for half in halves:
            series = []
            for prefill, decode in half:
                for first in range(0, len(prefill), _CHUNK_TOKENS):
                    _pages(core, prefill[first : first + _CHUNK_TOKENS])
                series.append(rule.stall_ms(_pages(core, decode)))
                moved = controller.observe(series[-1]) if controller else None
                if moved is not None:
                    rows, moves = dict(moved), moves + 1
                    for index, layer_id in enumerate(core.layer_ids):
                        core.set_cache_rows(index, rows[layer_id])
                advance(1)
            stalls.append(tuple(series))
            ends.append(rows)
    return ArmResult(tuple(stalls), tuple(ends), moves)


def _pages(core: LookupCore, rows: U32) -> list[int]:
    """Look up one batch's rows [tokens, layers, columns]; pages read per layer."""
    core.begin([rows[:, layer].astype(np.int64).ravel() for layer in range(rows.shape[1])])
    pages = [core.wait(layer).pages for layer in range(rows.shape[1])]
    core.end()
    return pages


def _core(hasher: Hasher, ranks: int, split: Mapping[int, int]) -> LookupCore:
    layout = hasher.layout
    setups = [
        LayerSetup(layer_id, (_table(layer_id, count, sum(row_shape(hasher))),), split[layer_id])
        for layer_id, count in zip(layout.layer_ids, layout.row_counts, strict=True)
    ]
    return LookupCore(setups, rank=0, tp=ranks, lookups_max=_CHUNK_TOKENS * hasher.constants.primes[0].size)


def _table(layer_id: int, row_count: int, row_bytes: int) -> PatternSource:
    """Rows that take no space: which of them are cached is all that matters here."""
    sb = Superblock(
        table_uuid=uuid.UUID(int=layer_id), layer_id=layer_id, epoch=1, row_count=row_count, payload_bytes=row_bytes,
        scale_bytes=0, row_format=RowFormat.RAW, model="split", revision="", source="pattern",
    )  # fmt: skip
    return PatternSource(sb, seed=layer_id)
