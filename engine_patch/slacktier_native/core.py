# SPDX-License-Identifier: Apache-2.0
"""Lookups of one rank: sources, row cache, and one C call per step. The data path itself is in native/src.

A step:  begin(row ids of all layers) -> per layer wait() and gather() -> end().
One thread drives a core; every call into C releases the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from slacktier.cache_policy import CachePolicy
from slacktier.errors import (
    ConfigError,
    ContractError,
    DeadlineMissedError,
    SlackTierError,
    TierUnavailableError,
)
from slacktier.page import Superblock, same_rows
from slacktier_native._lib import (
    CACHE_POLICIES,
    CCoreConfig,
    CFaultReport,
    CLayerConfig,
    CLayerResult,
    CLayerStats,
    library,
)  # fmt: skip
from slacktier_native.pages import FAULTS, Bytes, PageCodec
from slacktier_native.rdma import READ_ERRORS, RdmaSpec
from slacktier_native.row_link import RowsSpec
from slacktier_native.sources import AnySource, MemorySpec, PatternSource, RemoteSpec, SourcePool, SourceSpec, set_delay

LOOKUPS_MAX: Final = 8192 * 24 * 2  # a prefill chunk's ids of one layer, with room for twice the columns
REPLICAS_MAX: Final = 4
HOST_ROW_OVERHEAD_BYTES: Final = 21  # beside the record: the seed of its checksum, and 4.75 bytes of directory
BACKENDS: Final = {"auto": 0, "uring": 1, "posix": 2}
__all__ = [
    "LayerResult",
    "LayerSetup",
    "LookupCore",
    "MemorySpec",
    "PatternSource",
    "RowsSpec",
    "SourceSpec",
    "set_delay",
    "sleep_until_ns",
]

_log = logging.getLogger(__name__)
_told: set[str] = set()  # why io_uring is not in use: once per process

RowIds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerSetup:
    """One lookup layer: replicas in order of preference, its share of the row cache and of the second level."""

    layer_id: int
    sources: tuple[AnySource, ...]
    cache_rows: int = 0
    host_cache_bytes: int = 0
    cache_policy: CachePolicy = CachePolicy.CLOCK


class LayerResult(NamedTuple):
    """What one layer's lookup of one step did; times in microseconds.

    lookups    ids asked for, padding and other ranks' included; owned = hits + repeats + misses
    hits       in the cache when the step began; repeats: asked for again in the same step
    pages      distinct page reads; host_hits: misses that the second level answered, which are no pages
    resolve_us step begin to the first miss handed to a reader (the window rule's s); read_us: from then until
               the layer's last row was checked (its T); both 0 where nothing was read
    wait_us    how long wait() blocked; pass_us: this layer's part of begin()'s pass over the ids
    """

    lookups: int
    owned: int
    hits: int
    repeats: int
    misses: int
    pages: int
    spills: int
    retries: int
    pass_us: float
    resolve_us: float
    read_us: float
    arrived_us: float
    wait_us: float
    host_hits: int = 0


def sleep_until_ns(instant_ns: int) -> None:
    """Sleep until a time.monotonic_ns() instant, within microseconds; spins the last 60 us, GIL released."""
    library().st_sleep_until(instant_ns)


class LookupCore:
    """Lookups of one rank over layers in order of use; the first layer's reads always go first.

    rank, tp     rows with row_id % tp == rank are owned; others cost nothing and come back as zeros
    lookups_max  ids per layer and step
    io_threads   0: one with io_uring, 16 with preadv
    backend      auto, uring or posix (preadv threads); `backend` says which is in use, `backend_reason` why
    timeout_s    how long wait() waits before it raises DeadlineMissedError
    own_reads    for callers that wait as soon as they have begun: the calling thread does the first layer's first 64
                 reads itself where io_uring is in use; when they arrived is then not known before the wait
    """

    def __init__(
        self,
        layers: Sequence[LayerSetup],
        *,
        rank: int = 0,
        tp: int = 1,
        lookups_max: int = LOOKUPS_MAX,
        io_threads: int = 0,
        queue_depth: int = 256,
        backend: str = "auto",
        spin_us: int = 0,
        timeout_s: float = 10.0,
        allow_partial: bool = False,
        own_reads: bool = False,
    ) -> None:
        if not layers:
            raise ConfigError("no lookup layer given")
        if backend not in BACKENDS:
            raise ConfigError(f"back end {backend!r}: expected one of {', '.join(BACKENDS)}")
        if not 0 <= rank < tp:
            raise ConfigError(f"rank {rank} of {tp}: expected 0 <= rank < tp")
        self._handle: int | None = None
        self._timeout_ns = int(timeout_s * 1e9)
        self._sources = SourcePool(allow_partial=allow_partial)
        self._specs: list[tuple[AnySource, ...]] = []
        self._superblocks: list[Superblock] = []
        self._pointers = (ctypes.c_void_p * len(layers))()
        self._counts = (ctypes.c_uint64 * len(layers))()
        self._lookups = [0] * len(layers)  # of the open step: what gather() writes
        self._host_cache_bytes = [0] * len(layers)
        self._delivered: list[dict[str, int]] = [{} for _ in layers]
        self._counted = [[0] * REPLICAS_MAX for _ in layers]
        self.layer_ids = tuple(setup.layer_id for setup in layers)
        self.lookups_max = lookups_max
        self.tp = tp
        try:
            config = CCoreConfig(
                len(layers), rank, tp, io_threads, queue_depth, BACKENDS[backend], spin_us, lookups_max
            )
            self._open(config, layers)
            if own_reads:
                self._start_own_reads()
        except BaseException:
            self.close()
            raise

    def _open(self, config: CCoreConfig, layers: Sequence[LayerSetup]) -> None:
        configs = (CLayerConfig * len(layers))()
        for index, setup in enumerate(layers):
            handles, sb = self._open_sources(setup.layer_id, setup.sources)
            configs[index].cache_rows = setup.cache_rows
            configs[index].cache_policy = CACHE_POLICIES.index(setup.cache_policy)
            configs[index].source_count = len(handles)
            configs[index].sources[: len(handles)] = handles
            self._specs.append(setup.sources)
            self._superblocks.append(sb)
        handle = ctypes.c_void_p()
        rc = library().st_core_open(ctypes.byref(config), configs, ctypes.byref(handle))
        if rc < 0 or handle.value is None:
            raise ConfigError(f"lookup core: {os.strerror(-rc)}", hint="`slacktier doctor` says what is missing")
        self._handle = handle.value
        for index, setup in enumerate(layers):
            if setup.host_cache_bytes:
                self.set_host_cache(index, setup.host_cache_bytes)
        reason = ctypes.c_int()
        self.backend = "uring" if library().st_core_backend(self._handle, ctypes.byref(reason)) == 1 else "posix"
        self.backend_reason = f"io_uring: {errno.errorcode[-reason.value]}" if reason.value else ""
        if self.backend_reason and self.backend_reason not in _told:
            _told.add(self.backend_reason)
            _log.warning("%s; pages are read by preadv threads", self.backend_reason)

    @property
    def is_polled(self) -> bool:
        """Whether readers poll the devices for completions: every file is a block device with poll queues."""
        return bool(library().st_core_is_polled(self._require()))

    def _start_own_reads(self) -> None:
        rc = library().st_core_set_own_reads(self._require(), 1)
        if rc < 0:
            raise ConfigError(f"own reads: {os.strerror(-rc)}", hint="`slacktier doctor` says what is missing")

    def _open_sources(self, layer_id: int, specs: Sequence[AnySource]) -> tuple[list[int], Superblock]:
        if not 1 <= len(specs) <= REPLICAS_MAX:
            raise ConfigError(f"layer {layer_id}: {len(specs)} sources, expected 1 to {REPLICAS_MAX}")
        first = self._first_superblock(specs)
        opened = [self._sources.get(spec, like=first) for spec in specs]
        for spec, (_, sb) in zip(specs, opened, strict=True):
            if sb.layer_id != layer_id and not isinstance(spec, MemorySpec):
                raise ConfigError(f"{spec.label}: holds layer {sb.layer_id}, expected layer {layer_id}")
            if not same_rows(sb, first):
                raise ConfigError(f"{spec.label}: not a replica of {specs[0].label}: another table or other bytes")
        return [handle for handle, _ in opened], first

    def _first_superblock(self, specs: Sequence[AnySource]) -> Superblock:
        """Of the first source that can be opened: a row server that is away is no reason not to start."""
        away: TierUnavailableError | None = None
        for spec in specs:
            try:
                return self._sources.get(spec)[1]
            except TierUnavailableError as exc:
                if not isinstance(spec, RemoteSpec) or exc.errno == 0:
                    raise
                away = away or exc
        assert away is not None  # noqa: S101 - there is at least one source
        raise away

    def links(self) -> dict[str, str]:
        """Why each remote source in use is down, by label; empty for one that is up."""
        return {
            spec.label: self._sources.down_reason(spec)
            for specs in self._specs
            for spec in specs
            if isinstance(spec, RemoteSpec)
        }

    def rdma_counters(self, spec: RdmaSpec) -> dict[str, int]:
        """READs, rows and bytes of one of this core's RDMA sources since open, and its failures by kind."""
        return self._sources.rdma_counters(spec)

    def memory_pages(self) -> dict[str, str]:
        """What the tables in this process's memory are in, by source label: reserved, transparent (huge) or small."""
        found = {spec.label: self._sources.memory_pages(spec) for specs in self._specs for spec in specs}
        return {label: kind for label, kind in found.items() if kind}

    @property
    def handle(self) -> int:
        """The C core, for other bindings of this package; raises ConfigError once it is closed."""
        return self._require()

    def superblock(self, layer_index: int) -> Superblock:
        """Of the layer's first source."""
        return self._superblocks[layer_index]

    def sources(self, layer_index: int) -> tuple[AnySource, ...]:
        return self._specs[layer_index]

    def row_bytes(self, layer_index: int) -> int:
        return self._superblocks[layer_index].row_bytes

    def begin(self, row_ids: Sequence[RowIds]) -> None:
        """Look up all layers' ids and start reading what is missing; one C call.

        row_ids  one 1-D int64 array per layer, any lengths up to lookups_max; -1 is padding
        raises   ConfigError for ids outside the table, TierUnavailableError while late reads are in flight
        """
        if len(row_ids) != len(self.layer_ids):
            raise ConfigError(f"ids of {len(row_ids)} layers, expected {len(self.layer_ids)}")
        arrays = [np.ascontiguousarray(ids, dtype=np.int64) for ids in row_ids]
        for index, ids in enumerate(arrays):
            self._pointers[index] = ids.ctypes.data
            self._counts[index] = ids.size
        rc = library().st_step_begin(self._require(), self._pointers, self._counts)
        if rc < 0:
            raise self._begin_error(rc, arrays)
        self._lookups = [ids.size for ids in arrays]  # only now: a refused begin leaves the open step as it is

    def _begin_error(self, rc: int, arrays: Sequence[RowIds]) -> SlackTierError:
        if rc == -errno.ERANGE:
            for layer_id, sb, ids in zip(self.layer_ids, self._superblocks, arrays, strict=True):
                bad = ids[(ids < -1) | (ids >= sb.row_count)]
                if bad.size:
                    return ConfigError(f"layer {layer_id}: row id {bad[0]}, expected -1 to {sb.row_count - 1}")
        if rc == -errno.EBUSY:
            return TierUnavailableError(
                "a step is open, or reads of a step that timed out are still in flight",
                tier="", operation="begin", target="", errno=errno.EBUSY,
            )  # fmt: skip
        if rc == -errno.E2BIG:
            return ConfigError(f"step of {max(a.size for a in arrays)} lookups: more than lookups_max")
        return TierUnavailableError(os.strerror(-rc), tier="", operation="begin", target="", errno=-rc)

    def wait(self, layer_index: int) -> LayerResult:
        """Block until the layer's rows are here and checked.

        raises  DeadlineMissedError after timeout_s; ContractError or TierUnavailableError when no replica
                delivered: the step's rows of this layer are then not available, and end() is still due
        """
        raw = CLayerResult()
        rc = library().st_step_wait(self._require(), layer_index, self._timeout_ns, ctypes.byref(raw))
        if rc < 0:
            raise self.step_error(rc, layer_index)
        return LayerResult(
            raw.lookups, raw.owned, raw.hits, raw.repeats, raw.misses, raw.pages, raw.spills, raw.retries,
            raw.pass_ns / 1e3, raw.resolve_ns / 1e3, raw.read_ns / 1e3, raw.arrived_ns / 1e3, raw.wait_ns / 1e3,
            raw.host_hits,
        )  # fmt: skip

    def step_error(self, rc: int, layer_index: int) -> SlackTierError:
        """What a step's -errno on a layer means, with what the readers last saw there."""
        specs, layer_id = self._specs[layer_index], self.layer_ids[layer_index]
        if rc == -errno.EINVAL:
            return ConfigError(f"wait for layer index {layer_index}: no step is open, or no such layer")
        if rc == -errno.ETIMEDOUT:
            return DeadlineMissedError(
                f"layer {layer_id}: rows did not arrive from {specs[0].label} within {self._timeout_ns / 1e9:g} s",
                tier=specs[0].tier.value, operation="read", target=specs[0].label, errno=errno.ETIMEDOUT,
            )  # fmt: skip
        report = CFaultReport()
        library().st_core_fault(self._require(), layer_index, ctypes.byref(report))
        spec = specs[min(report.replica, len(specs) - 1)]
        where = f"layer {layer_id} page {report.page_id} from {spec.label}"
        tried = f"{len(specs)} replica(s) tried"
        if report.fault:
            return ContractError(
                f"{where}, row {report.row_id}: {FAULTS[report.fault]}; {tried}", hint="run `slacktier verify` on it"
            )
        if isinstance(spec, RemoteSpec):
            where = f"layer {layer_id} row {report.row_id} from {spec.label}"
        found = f"{report.bytes} bytes, expected 4096"
        if report.bytes < 0:
            known = READ_ERRORS if isinstance(spec, RdmaSpec) else {}
            found = known.get(-report.bytes, os.strerror(-report.bytes))
        return TierUnavailableError(
            f"{where}: read failed: {found}; {tried}",
            tier=spec.tier.value, operation="read", target=spec.label, errno=-report.error,
        )  # fmt: skip

    def gather(self, layer_index: int, out: npt.NDArray[np.uint8]) -> None:
        """Rows in order of the ids into out [n, row_bytes] uint8: payload, then scales; unowned rows are zero."""
        row_bytes, count = self.row_bytes(layer_index), self._lookups[layer_index]
        if not out.flags.c_contiguous or out.nbytes < count * row_bytes or out.dtype != np.uint8:
            raise ConfigError(f"gather: buffer of {out.nbytes} bytes, expected {count * row_bytes} of uint8")
        rc = library().st_step_gather(self._require(), layer_index, out.ctypes.data, row_bytes)
        if rc < 0:
            raise ConfigError(f"gather of layer index {layer_index} without its rows: wait() has not succeeded")

    def end(self) -> None:
        """Close the step; a no-op if none is open."""
        library().st_step_end(self._require())

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        """Resize a layer's cache between steps; rows stay cached as far as they fit."""
        rc = library().st_core_set_cache_rows(self._require(), layer_index, rows)
        if rc < 0:
            raise ConfigError(f"cache of {rows} rows for layer {self.layer_ids[layer_index]}: {os.strerror(-rc)}")

    def set_host_cache(self, layer_index: int, byte_count: int) -> None:
        """Resize a layer's second level in host memory between steps; 0 turns it off, rows stay as far as they fit."""
        sb = self._superblocks[layer_index]
        rows = min(sb.row_count, byte_count // (sb.record_bytes + HOST_ROW_OVERHEAD_BYTES))
        rc = library().st_core_set_host_rows(self._require(), layer_index, rows)
        if rc < 0:
            layer_id = self.layer_ids[layer_index]
            raise ConfigError(f"second level of {byte_count} bytes for layer {layer_id}: {os.strerror(-rc)}")
        self._host_cache_bytes[layer_index] = byte_count

    def host_cache_bytes(self, layer_index: int) -> int:
        """What the layer's second level was given; 0: it is off."""
        return self._host_cache_bytes[layer_index]

    def set_dedup(self, on: bool) -> None:
        """Between steps: off, a missing row is read once for each time that a step asks for it. For benchmarks."""
        rc = library().st_core_set_dedup(self._require(), int(on))
        if rc < 0:
            raise ConfigError(f"deduplication: {os.strerror(-rc)}: a step is open")

    def drop_cache(self, layer_index: int) -> None:
        """Forget a layer's cached rows, between steps; needed after a weight update."""
        rc = library().st_core_drop_cache(self._require(), layer_index)
        if rc < 0:
            raise ConfigError(f"drop cache of layer {self.layer_ids[layer_index]}: {os.strerror(-rc)}")

    def seed(self, layer_index: int, sent: Superblock, row_ids: npt.NDArray[np.uint32], records: Bytes) -> int:
        """Fill a layer's cache between steps with rows that another instance has sent; how many it has then.

        sent     superblock of the region that the records are of; row_ids [N]; records [N, record_bytes] uint8
        raises   ContractError, and nothing is kept, if a record is not the row of that id or the region another table's
        """
        layer_id, codec = self.layer_ids[layer_index], PageCodec(sent)
        if not same_rows(sent, self._superblocks[layer_index]):
            raise ContractError(f"seed of layer {layer_id}: of table {sent.table_uuid}, which is not the one served")
        ids, raw = np.ascontiguousarray(row_ids, np.uint32), np.ascontiguousarray(records, np.uint8)
        if raw.size != ids.size * sent.record_bytes:
            raise ContractError(f"seed of layer {layer_id}: {raw.size} bytes for {ids.size} rows")
        kept, bad_row = ctypes.c_uint64(), ctypes.c_uint32()
        rc = library().st_core_seed(
            self._require(), layer_index, ctypes.byref(codec.layout), ids.ctypes.data, raw.ctypes.data, ids.size,
            ctypes.byref(kept), ctypes.byref(bad_row),
        )  # fmt: skip
        if rc in (-errno.EBADMSG, -errno.ERANGE):
            raise ContractError(f"seed of layer {layer_id}: row {bad_row.value} is not what it says, or damaged")
        if rc < 0:
            raise ConfigError(f"seed of layer {layer_id}: {os.strerror(-rc)}")
        return kept.value

    def set_sources(self, layer_index: int, specs: Sequence[AnySource]) -> None:
        """Read a layer from other replicas from the next step on; the cache is kept if the rows are the same."""
        handles, sb = self._open_sources(self.layer_ids[layer_index], specs)
        array = (ctypes.c_void_p * len(handles))(*handles)
        keep = int(same_rows(sb, self._superblocks[layer_index]))
        self._count_delivered()
        rc = library().st_core_set_sources(self._require(), layer_index, array, len(handles), keep)
        if rc < 0:
            raise ConfigError(f"sources of layer {self.layer_ids[layer_index]}: {os.strerror(-rc)}")
        self._specs[layer_index] = tuple(specs)
        self._superblocks[layer_index] = sb

    def stats(self) -> dict[int, dict[str, int]]:
        """Totals since open, per layer id; fallback_rows came from another replica than the first."""
        totals = {}
        for index, layer_id in enumerate(self.layer_ids):
            raw = self._raw_stats(index)
            counts = {name: int(getattr(raw, name)) for name in CLayerStats.COUNTS}
            totals[layer_id] = {**counts, "fallback_rows": sum(raw.replica_rows[1:])}
        return totals

    def delivered(self) -> dict[int, dict[str, int]]:
        """Rows that each source has delivered since open, per layer id and source label, in order of first use."""
        self._count_delivered()
        return {layer_id: dict(self._delivered[index]) for index, layer_id in enumerate(self.layer_ids)}

    def _count_delivered(self) -> None:
        """The core counts per place in the list; what a place holds changes with the sources."""
        for index, specs in enumerate(self._specs):
            rows = self._raw_stats(index).replica_rows
            for place, spec in enumerate(specs):
                by_label = self._delivered[index]
                by_label[spec.label] = by_label.get(spec.label, 0) + rows[place] - self._counted[index][place]
            self._counted[index] = list(rows)

    def _raw_stats(self, layer_index: int) -> CLayerStats:
        raw = CLayerStats()
        library().st_core_stats(self._require(), layer_index, ctypes.byref(raw))
        return raw

    def close(self) -> None:
        """Stop the readers and close the sources; idempotent."""
        if self._handle is not None:
            library().st_core_close(self._handle)
            self._handle = None
        self._sources.close()

    def _require(self) -> int:
        if self._handle is None:
            raise ConfigError("the lookup core is closed")
        return self._handle

    def __enter__(self) -> LookupCore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
