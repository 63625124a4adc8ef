# SPDX-License-Identifier: Apache-2.0
"""The rows that a trace looks up in one layer, renamed to keys and cut to the sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier.page import PAGE_BYTES, PAGE_HEADER, record_bytes_for
from slacktier_cli.characterize.progress import Reporter
from slacktier_cli.characterize.sampling import Sampling
from slacktier_cli.traces import Trace
from slacktier_native.cache_sim import CLASSES, RowIndex, Stream
from slacktier_rowids.engram import EngramLayout
from slacktier_rowids.models import Hasher
from slacktier_rowids.ngram import HashConstants, NgramHasher
from slacktier_rowids.seen_set import SeenLayer, SeenSet

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

# Tokens hashed per call: row ids of a call stay below 50 MB.
_CALL_TOKENS: Final = 1 << 18
_ENGRAM_SCALE_BLOCK: Final = 32


@dataclass(frozen=True)
class Lookups:
    """What one layer looks up at every position of a trace.

    first, keys  keys of position p are keys[first[p]:first[p + 1]]
    rows         [keys] uint32, row id of each key
    class_of     [keys] uint8, n-gram order of each key minus 2
    decode       [positions] uint8
    orders       n-gram orders, so classes;  heads: columns per order
    rows_per_page, row_count  of the staged table
    """

    layer_id: int
    first: U64
    keys: U32
    rows: U32
    class_of: U8
    decode: U8
    orders: int
    heads: int
    row_count: int
    rows_per_page: int
    sampling: Sampling

    @property
    def columns(self) -> int:
        return self.orders * self.heads

    @property
    def rate(self) -> float:
        return float(self.sampling.rate)

    def stream(self, order: U32, skip: U8 | None = None) -> Stream:
        """The lookups in that order of positions."""
        return Stream(order, self.first, self.keys, self.decode, self.class_of, skip)

    @cached_property
    def pages(self) -> U32:
        """[keys] uint32, a dense number for the page of each key."""
        with RowIndex() as index:
            return index.add(self.rows // np.uint32(self.rows_per_page))


class LayerHash:
    """Row ids of the looked-at heads of one layer."""

    def __init__(self, hasher: Hasher, layer_id: int, sampling: Sampling) -> None:
        layout, constants = hasher.layout, hasher.constants
        if layer_id not in layout.layer_ids:
            known = ", ".join(map(str, layout.layer_ids))
            raise ConfigError(f"layer {layer_id}: no table in this model, whose layers are {known}")
        index = layout.layer_ids.index(layer_id)
        layers, self.orders, self.heads = constants.primes.shape
        if self.orders > CLASSES or layout.row_counts[index] >= 2**32:
            raise ConfigError(f"layer {layer_id}: {self.orders} n-gram orders of {layout.row_counts[index]} rows")
        self.layer_id = layer_id
        self.sampling = sampling
        self.row_count = layout.row_counts[index]
        self.rows_per_page = rows_per_page(hasher)
        part = HashConstants(constants.multipliers[[index]], constants.primes[[index]][:, :, : sampling.heads])
        self._hasher = NgramHasher(part, hasher.vocabulary)
        starts = constants.offsets.reshape(layers, self.orders, self.heads)[index, :, : sampling.heads]
        self._starts = starts[:, 0].copy()
        self._shift = starts.ravel() - part.offsets[0]

    def row_ids(self, tokens: U32, offsets: I64) -> U32:
        """Row ids of packed sequences, [T, looked-at columns] uint32; raises ConfigError for a foreign token."""
        rows = self._hasher.packed(tokens, offsets)[:, 0] + self._shift
        row_ids: U32 = rows.astype(np.uint32)
        return row_ids

    def classes(self, rows: U32) -> U8:
        """N-gram order minus 2 of each row: the buckets of one order lie side by side."""
        order = np.searchsorted(self._starts, rows, side="right") - 1
        return order.astype(np.uint8)


def row_shape(hasher: Hasher) -> tuple[int, int]:
    """Payload and scale bytes of a staged row (FP8 rows)."""
    dim = hasher.layout.head_dim
    return dim, dim // _ENGRAM_SCALE_BLOCK if isinstance(hasher.layout, EngramLayout) else 0


def rows_per_page(hasher: Hasher) -> int:
    """Rows in a page of the staged table (FP8 rows)."""
    return (PAGE_BYTES - PAGE_HEADER.size) // record_bytes_for(*row_shape(hasher))


def session_batches(offsets: I64, tokens_max: int = _CALL_TOKENS) -> Iterator[tuple[int, int]]:
    """Ranges of sessions with at most tokens_max tokens each, or one longer session."""
    first, count = 0, len(offsets) - 1
    while first < count:
        end = max(int(np.searchsorted(offsets, offsets[first] + tokens_max, side="right")) - 1, first + 1)
        yield first, end
        first = end


def _hashed(trace: Trace, layer: LayerHash) -> Iterator[tuple[int, int, U32]]:
    """(first position, end, row ids [T, looked-at columns]) of batches of sessions, in order."""
    offsets = trace.session_offsets
    for first, end in session_batches(offsets):
        start, stop = int(offsets[first]), int(offsets[end])
        yield start, stop, layer.row_ids(trace.tokens[start:stop], offsets[first : end + 1] - start)


def look_up(trace: Trace, layer: LayerHash, advance: Callable[[int], None]) -> Lookups:
    """The lookups of a whole trace in one layer; advance is told how many tokens were hashed."""
    sampling = layer.sampling
    columns = layer.orders * sampling.heads
    counts = np.full(len(trace.tokens), columns, np.uint16)
    # All lookups of the looked-at heads fit; what a smaller share leaves unused is never touched.
    keys = np.empty(len(trace.tokens) * columns, np.uint32)
    used = 0
    with RowIndex() as index:
        for start, stop, rows in _hashed(trace, layer):
            if sampling.share < 1:
                picked = sampling.picks(rows // np.uint32(layer.rows_per_page))
                counts[start:stop] = picked.sum(axis=1)
            found = index.add(rows[picked] if sampling.share < 1 else rows.ravel())
            keys[used : used + len(found)] = found
            used += len(found)
            advance(stop - start)
        row_ids = index.rows()
    return Lookups(
        layer_id=layer.layer_id,
        first=np.concatenate([[0], np.cumsum(counts, dtype=np.uint64)]).astype(np.uint64),
        keys=keys[:used],
        rows=row_ids,
        class_of=layer.classes(row_ids),
        decode=trace.decode_mask.astype(np.uint8),
        orders=layer.orders,
        heads=layer.heads,
        row_count=layer.row_count,
        rows_per_page=layer.rows_per_page,
        sampling=sampling,
    )


def rows_used(trace: Trace, hasher: Hasher, layers: tuple[int, ...], reporter: Reporter) -> SeenSet:
    """Every row that the trace looks up, in these layers (none named: all)."""
    seen = []
    for layer_id in sorted(layers or hasher.layout.layer_ids):
        layer = LayerHash(hasher, layer_id, Sampling.at(Fraction(1), hasher.constants.primes.shape[2]))
        flags = np.zeros(layer.row_count, np.bool_)
        with reporter.work(f"layer {layer_id}: seen-set", len(trace.tokens)) as advance:
            for start, stop, rows in _hashed(trace, layer):
                flags[rows] = True
                advance(stop - start)
        seen.append(SeenLayer.of_flags(layer_id, flags))
    return SeenSet(tuple(seen))
