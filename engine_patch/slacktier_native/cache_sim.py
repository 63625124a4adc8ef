# SPDX-License-Identifier: Apache-2.0
"""Cache simulators over a trace's lookups; each call releases the GIL. Semantics: st_cache_sim.h."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from slacktier.cache_policy import CachePolicy
from slacktier.errors import ConfigError, SlackTierError
from slacktier_native._lib import CACHE_POLICIES, library

PHASES: Final = 2
CLASSES: Final = 8
SIZES_MAX: Final = 64
KEYS_MAX: Final = 2**31

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


class Phase(IntEnum):
    """Which lookups count."""

    ALL = 0
    DECODE = 1
    PREFILL = 2


class _CStream(ctypes.Structure):
    """st_sim_stream in st_cache_sim.h."""

    _fields_ = [
        ("order", c_void_p),
        ("token_count", c_uint64),
        ("first", c_void_p),
        ("keys", c_void_p),
        ("key_count", c_uint64),
        ("decode", c_void_p),
        ("class_of", c_void_p),
        ("skip", c_void_p),
    ]


_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "st_row_index_open": (c_void_p, []),
    "st_row_index_close": (None, [c_void_p]),
    "st_row_index_add": (c_int, [c_void_p, c_void_p, c_uint64, c_void_p]),
    "st_row_index_count": (c_uint64, [c_void_p]),
    "st_row_index_rows": (None, [c_void_p, c_void_p]),
    "st_sim_lru": (c_int, [POINTER(_CStream), c_void_p, c_uint32, c_void_p]),
    "st_sim_clock": (c_int, [POINTER(_CStream), c_uint64, c_void_p]),
    "st_sim_s3fifo": (c_int, [POINTER(_CStream), c_uint64, c_void_p]),
    "st_sim_directory": (c_int, [POINTER(_CStream), c_void_p, c_int, c_uint64, c_void_p]),
    "st_sim_distinct": (c_int, [POINTER(_CStream), c_void_p, c_uint64, c_int, c_void_p, c_void_p, c_void_p]),
    "st_sim_count": (None, [POINTER(_CStream), c_int, c_void_p]),
    "st_sim_handoff": (c_int, [POINTER(_CStream), c_void_p, c_uint64, c_void_p, c_void_p]),
}


@cache
def _simulators() -> ctypes.CDLL:
    lib = library()
    for name, (restype, argtypes) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    return lib


def _check(rc: int, what: str) -> None:
    if rc < 0:
        raise SlackTierError(f"{what}: {os.strerror(-rc)}", hint="sample fewer rows" if rc != -22 else "")


class RowIndex:
    """Renames row ids to keys 0, 1, 2, ... in order of first appearance."""

    def __init__(self) -> None:
        self._handle = _simulators().st_row_index_open()
        if not self._handle:
            raise SlackTierError("row index: out of memory")

    def add(self, row_ids: U32) -> U32:
        """Keys of these rows; new rows get the next keys. row_ids [N] uint32 -> [N] uint32."""
        row_ids = np.ascontiguousarray(row_ids, np.uint32)
        keys = np.empty_like(row_ids)
        rc = _simulators().st_row_index_add(self._handle, row_ids.ctypes.data, row_ids.size, keys.ctypes.data)
        _check(rc, "row index")
        return keys

    def rows(self) -> U32:
        """The row id of each key so far."""
        row_ids = np.empty(_simulators().st_row_index_count(self._handle), np.uint32)
        _simulators().st_row_index_rows(self._handle, row_ids.ctypes.data)
        return row_ids

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            _simulators().st_row_index_close(handle)

    def __enter__(self) -> RowIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Handoff:
    """Decode lookups by class [CLASSES], and how many name a row that the session used before (st_handoff)."""

    lookups: U64
    prompt: U64
    session: U64
    first_lookups: U64
    first_prompt: U64


@dataclass(frozen=True)
class Stream:
    """The lookups of a trace and the order in which they are used.

    order     [token_count] uint32 positions; keys of position p are keys[first[p]:first[p + 1]]
    first     [positions + 1] uint64
    keys      [lookups] uint32, each below len(class_of)
    decode    [positions] uint8, 1 where the token was decoded
    class_of  [key_count] uint8, below CLASSES
    skip      [key_count] uint8 or None; lookups of keys with 1 are left out
    """

    order: U32
    first: U64
    keys: U32
    decode: U8
    class_of: U8
    skip: U8 | None = None

    def __post_init__(self) -> None:
        positions, key_count = len(self.decode), len(self.class_of)
        if key_count >= KEYS_MAX:
            raise ConfigError(f"stream: {key_count} distinct rows, at most {KEYS_MAX - 1} are simulated")
        holds = {
            "order": _max(self.order) < positions,
            "first": len(self.first) == positions + 1
            and (self.first[0], self.first[-1]) == (0, len(self.keys))
            and bool((self.first[1:] >= self.first[:-1]).all()),
            "keys": _max(self.keys) < key_count,
            "class_of": _max(self.class_of) < CLASSES,
            "skip": self.skip is None or len(self.skip) == key_count,
        }
        if bad := [name for name, good in holds.items() if not good]:
            raise ConfigError(f"stream: {bad[0]} does not fit {positions} positions and {key_count} keys")
        for name, dtype in _DTYPES.items():
            array = getattr(self, name)
            if array is not None and (array.dtype != dtype or not array.flags.c_contiguous):
                raise ConfigError(f"stream: {name} is {array.dtype}, expected contiguous {np.dtype(dtype)}")

    @property
    def key_count(self) -> int:
        return len(self.class_of)

    def lru(self, rows: Sequence[int]) -> U64:
        """Misses of an LRU cache at each size, one pass for all. rows ascending -> [sizes, PHASES, CLASSES]."""
        sizes = np.asarray(rows, np.uint64)
        if not 0 < len(sizes) <= SIZES_MAX or (np.diff(sizes.astype(np.float64)) <= 0).any():
            raise ConfigError(f"cache sizes: expected 1 to {SIZES_MAX} rising values, found {list(rows)}")
        misses = np.zeros((len(sizes), PHASES, CLASSES), np.uint64)
        _check(_simulators().st_sim_lru(self._c(), sizes.ctypes.data, len(sizes), misses.ctypes.data), "LRU")
        return misses

    def clock(self, rows: int) -> U64:
        """Misses of one CLOCK ring of `rows` rows: [PHASES, CLASSES], prefill and decode."""
        misses = np.zeros((PHASES, CLASSES), np.uint64)
        _check(_simulators().st_sim_clock(self._c(), rows, misses.ctypes.data), f"CLOCK of {rows} rows")
        return misses

    def s3fifo(self, rows: int) -> U64:
        """Misses of an S3-FIFO of `rows` rows: [PHASES, CLASSES]."""
        misses = np.zeros((PHASES, CLASSES), np.uint64)
        _check(_simulators().st_sim_s3fifo(self._c(), rows, misses.ctypes.data), f"S3-FIFO of {rows} rows")
        return misses

    def directory(self, rows: int, row_of: U32, policy: CachePolicy) -> U64:
        """Misses of the row cache's own directory: [PHASES, CLASSES]; row_of [key_count] uint32 row ids."""
        if len(row_of) != self.key_count:
            raise ConfigError(f"row_of: {len(row_of)} values for {self.key_count} keys")
        misses = np.zeros((PHASES, CLASSES), np.uint64)
        row_ids = np.ascontiguousarray(row_of, np.uint32)
        rc = _simulators().st_sim_directory(
            self._c(), row_ids.ctypes.data, CACHE_POLICIES.index(policy), rows, misses.ctypes.data
        )
        _check(rc, f"directory of {rows} rows with {policy}")
        return misses

    def distinct(
        self, bounds: npt.NDArray[np.integer[Any]], phase: Phase, group_of: U32 | None = None
    ) -> tuple[U32, U32]:
        """(lookups [R], distinct keys [R]) of the ranges order[bounds[i]:bounds[i + 1]]; bounds [R + 1] rising.

        group_of  [key_count] uint32, below key_count: count distinct groups (pages) instead of keys
        """
        edges = np.ascontiguousarray(bounds, np.uint64)
        if len(edges) < 1 or (np.diff(edges.astype(np.int64)) < 0).any():
            raise ConfigError("bounds: expected rising positions")
        if group_of is not None and (len(group_of) != self.key_count or _max(group_of) >= max(self.key_count, 1)):
            raise ConfigError(f"group_of: expected {self.key_count} values below {self.key_count}")
        groups = None if group_of is None else np.ascontiguousarray(group_of, np.uint32)
        lookups, found = np.zeros(len(edges) - 1, np.uint32), np.zeros(len(edges) - 1, np.uint32)
        rc = _simulators().st_sim_distinct(
            self._c(), edges.ctypes.data, len(edges) - 1, phase, None if groups is None else groups.ctypes.data,
            lookups.ctypes.data, found.ctypes.data,
        )  # fmt: skip
        _check(rc, "distinct rows")
        return lookups, found

    def counts(self, phase: Phase) -> U32:
        """Lookups of that phase by key: [key_count]."""
        counts = np.zeros(self.key_count, np.uint32)
        _simulators().st_sim_count(self._c(), phase, counts.ctypes.data)
        return counts

    def handoff(self, session_offsets: npt.NDArray[np.int64], turn_start: U32) -> Handoff:
        """Reuse within sessions, whatever the stream's order; the sessions are consecutive ranges of positions.

        turn_start  [positions] uint32, the first position of each one's turn
        """
        offsets = np.ascontiguousarray(session_offsets, np.uint64)
        positions = len(self.decode)
        if len(turn_start) != positions or int(offsets[-1]) > positions or (np.diff(session_offsets) < 0).any():
            raise ConfigError(f"sessions: expected rising offsets and turn starts for {positions} positions")
        starts = np.ascontiguousarray(turn_start, np.uint32)
        out = np.zeros((CLASSES, 5), np.uint64)
        rc = _simulators().st_sim_handoff(
            self._c(), offsets.ctypes.data, len(offsets) - 1, starts.ctypes.data, out.ctypes.data
        )
        _check(rc, "reuse within sessions")
        return Handoff(*out.T)

    def _c(self) -> Any:
        skip = None if self.skip is None else self.skip.ctypes.data
        return ctypes.byref(
            _CStream(
                self.order.ctypes.data, len(self.order), self.first.ctypes.data, self.keys.ctypes.data,
                self.key_count, self.decode.ctypes.data, self.class_of.ctypes.data, skip,
            )
        )  # fmt: skip


_DTYPES: Final[dict[str, type[np.generic]]] = {
    "order": np.uint32,
    "first": np.uint64,
    "keys": np.uint32,
    "decode": np.uint8,
    "class_of": np.uint8,
    "skip": np.uint8,
}


def _max(array: npt.NDArray[Any]) -> int:
    return int(array.max()) if array.size else -1
