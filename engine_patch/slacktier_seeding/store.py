# SPDX-License-Identifier: Apache-2.0
"""What a prefill instance keeps for decode instances: rows by request and layer, for a bounded time, in bounded bytes.

Rows are kept as records, encoded when they come in, so that whoever pulls them can check each one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier.page import Superblock
from slacktier_native.pages import PageCodec

RowIds = npt.NDArray[np.uint32]
Records = npt.NDArray[np.uint8]
ROOM_MAX: Final = (1 << 63) - 1


@dataclass(slots=True)
class StoreCounts:
    """Since the start; rows and bytes of what is no longer there included."""

    rows_kept: int = 0
    rows_taken: int = 0
    rows_refused: int = 0
    rooms_expired: int = 0
    rooms_evicted: int = 0


@dataclass(slots=True)
class _Room:
    expires_s: float
    byte_count: int = 0
    layers: dict[int, list[tuple[RowIds, Records]]] = field(default_factory=dict)


def _joined(parts: list[tuple[RowIds, Records]], record_bytes: int) -> tuple[RowIds, Records]:
    """All parts of a layer, ids ascending and once each."""
    if not parts:
        return np.empty(0, np.uint32), np.empty((0, record_bytes), np.uint8)
    ids, first = np.unique(np.concatenate([part[0] for part in parts]), return_index=True)
    return ids, np.concatenate([part[1] for part in parts])[first]


class SeedStore:
    """Rows under bootstrap rooms; safe to use from several threads.

    superblocks  of the regions that the rows come from, by layer id
    bytes_max    of records, all rooms together: the oldest rooms go first, and a larger room keeps what fits
    keep_s       after the last rows of a room came in
    """

    def __init__(
        self, superblocks: Mapping[int, Superblock], *, bytes_max: int, keep_s: float,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if not superblocks or bytes_max <= 0 or keep_s <= 0:
            raise ConfigError(
                f"seed store of {len(superblocks)} layers, {bytes_max} bytes, {keep_s:g} s: expected more of each"
            )
        self.superblocks = dict(superblocks)
        self.counts = StoreCounts()
        self._codecs = {layer_id: PageCodec(sb) for layer_id, sb in self.superblocks.items()}
        self._bytes_max, self._keep_s, self._now_s = bytes_max, keep_s, now_s
        self._rooms: OrderedDict[int, _Room] = OrderedDict()
        self._byte_count = 0
        self._lock = threading.Lock()

    @property
    def byte_count(self) -> int:
        """Bytes of records held now."""
        return self._byte_count

    @property
    def room_count(self) -> int:
        return len(self._rooms)

    def keep(self, room: int, layer_id: int, row_ids: npt.NDArray[np.int64], rows: Records) -> int:
        """Keep rows [N, row_bytes] uint8 that the request has looked up; how many were new and fitted.

        row_ids  [N], any order and repeats; ids below 0 are padding or another rank's and left out
        raises   ConfigError for a room that no request can have, or a layer that the store does not know
        """
        if not 0 <= room <= ROOM_MAX or layer_id not in self._codecs:
            raise ConfigError(f"seed of room {room}, layer {layer_id}: expected a room of 0 to 2^63 - 1, a known layer")
        ids, first = np.unique(row_ids, return_index=True)
        ids, first = ids[ids >= 0], first[ids >= 0]
        with self._lock:
            self._expire()
            kept = self._rooms.get(room)
            known = [part[0] for part in kept.layers.get(layer_id, [])] if kept else []
        if known:
            new = ~np.isin(ids, np.concatenate(known))
            ids, first = ids[new], first[new]
        records = self._codecs[layer_id].encode_records(ids.astype(np.uint32), np.ascontiguousarray(rows[first]))
        with self._lock:
            return self._add(room, layer_id, ids.astype(np.uint32), records)

    def _add(self, room: int, layer_id: int, ids: RowIds, records: Records) -> int:
        kept = self._rooms.pop(room, None) or _Room(0.0)
        kept.expires_s = self._now_s() + self._keep_s
        self._rooms[room] = kept
        while self._byte_count + records.nbytes > self._bytes_max and next(iter(self._rooms)) != room:
            self._drop(next(iter(self._rooms)))
            self.counts.rooms_evicted += 1
        fits = min(len(ids), (self._bytes_max - self._byte_count) // records.shape[1])
        self.counts.rows_kept += fits
        self.counts.rows_refused += len(ids) - fits
        if fits:
            part = (ids[:fits], records[:fits] if fits == len(ids) else records[:fits].copy())
            kept.layers.setdefault(layer_id, []).append(part)
            kept.byte_count += part[1].nbytes
            self._byte_count += part[1].nbytes
        return int(fits)

    def take(self, room: int, layer_id: int) -> tuple[RowIds, Records]:
        """A room's rows of one layer, ids ascending; they leave the store. None are there: empty arrays."""
        with self._lock:
            self._expire()
            kept = self._rooms.get(room)
            parts = kept.layers.pop(layer_id, []) if kept else []
            if kept:
                freed = sum(part[1].nbytes for part in parts)
                kept.byte_count -= freed
                self._byte_count -= freed
                if not kept.layers:
                    del self._rooms[room]
        ids, records = _joined(parts, self.superblocks[layer_id].record_bytes)
        with self._lock:
            self.counts.rows_taken += len(ids)
        return ids, records

    def forget(self, room: int) -> None:
        """Of a request that was aborted; no room is no error."""
        with self._lock:
            if room in self._rooms:
                self._drop(room)

    def _drop(self, room: int) -> None:
        self._byte_count -= self._rooms.pop(room).byte_count

    def _expire(self) -> None:
        now_s = self._now_s()
        while self._rooms and next(iter(self._rooms.values())).expires_s <= now_s:
            self._drop(next(iter(self._rooms)))
            self.counts.rooms_expired += 1
