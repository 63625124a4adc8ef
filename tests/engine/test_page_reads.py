# SPDX-License-Identifier: Apache-2.0
"""How evenly four ranks share a table's page reads on recorded sessions, beside the engines' own cut.

Goal: the slowest rank sets the step, so maximum over mean is what an uneven cut costs. Method: the lookup core that the
plugin drives replays the same steps once per rank. Ours: rank r owns the rows whose id modulo 4 is r. SGLang 0.5.23's:
rank r owns 6 of the 24 hash columns; the others' ids are padding to it. No server: what a rank reads depends on
row ids alone.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest

from slacktier.page import RowFormat, Superblock
from slacktier_cli.split_study.steps import Half, half_of
from slacktier_cli.traces import Trace
from slacktier_native.core import LayerSetup, LookupCore, PatternSource
from slacktier_rowids.models import V41_CONFIG, Hasher, load_hasher

RANKS: Final = 4
SESSIONS: Final = 32
STEPS: Final = 96
CHUNK_TOKENS: Final = 8192
CACHE_ROWS: Final = 50_000
UNEVEN_MAX: Final = 1.1
Rows = npt.NDArray[np.uint32]


@pytest.fixture(scope="module")
def hasher() -> Hasher:
    return load_hasher(V41_CONFIG)


def source(layer_id: int, row_count: int) -> PatternSource:
    """V4.1's table in its real size and page layout, taking no space."""
    sb = Superblock(
        table_uuid=uuid.UUID(int=layer_id), layer_id=layer_id, epoch=1, row_count=row_count, payload_bytes=256,
        scale_bytes=8, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="v41", revision="", source="pattern",
    )  # fmt: skip
    return PatternSource(sb, seed=layer_id)


def pages_read(hasher: Hasher, batches: Iterable[Rows], rank: int, tp: int) -> int:
    layout = hasher.layout
    setups = [
        LayerSetup(layer_id, (source(layer_id, rows),), CACHE_ROWS)
        for layer_id, rows in zip(layout.layer_ids, layout.row_counts, strict=True)
    ]
    with LookupCore(setups, rank=rank, tp=tp) as core:
        for batch in batches:
            core.begin([batch[:, layer].astype(np.int64).ravel() for layer in range(batch.shape[1])])
            for layer in range(batch.shape[1]):
                core.wait(layer)
            core.end()
        return sum(layer["pages"] for layer in core.stats().values())


def batches(half: Half) -> Iterable[npt.NDArray[np.int64]]:
    """What the engine's forwards look up, [tokens, layers, columns]: prefill in chunks, then the decode step."""
    for prefill, decode in half:
        for first in range(0, len(prefill), CHUNK_TOKENS):
            yield prefill[first : first + CHUNK_TOKENS].astype(np.int64)
        yield decode.astype(np.int64)


def of_columns(rows: npt.NDArray[np.int64], rank: int) -> npt.NDArray[np.int64]:
    """The ids of a rank that owns whole hash columns; padding elsewhere."""
    width = rows.shape[2] // RANKS
    own = np.full_like(rows, -1)
    own[:, :, rank * width : (rank + 1) * width] = rows[:, :, rank * width : (rank + 1) * width]
    return own


def uneven(pages: list[int]) -> float:
    return max(pages) / (sum(pages) / len(pages))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ["agent", "chat"])
def test_page_reads_of_striped_ranks_are_even(name: str, hasher: Hasher, traces_dir: Path) -> None:
    trace = Trace.load(traces_dir / f"{name}.npz")
    half = half_of(name, trace, hasher, sessions=SESSIONS, steps=STEPS, seed=0, advance=lambda tokens: None)
    ours = [pages_read(hasher, batches(half), rank, RANKS) for rank in range(RANKS)]
    stock = [pages_read(hasher, (of_columns(rows, rank) for rows in batches(half)), 0, 1) for rank in range(RANKS)]
    print(f"\n{name}: {len(half.rows)} tokens in {half.step_count} steps, pages read by each of {RANKS} ranks")
    print(f"striped  {ours}: maximum over mean {uneven(ours):.3f}")
    print(f"columns  {stock}: maximum over mean {uneven(stock):.3f}")
    assert uneven(ours) <= UNEVEN_MAX
