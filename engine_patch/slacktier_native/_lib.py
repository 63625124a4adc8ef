# SPDX-License-Identifier: Apache-2.0
"""Loads the C library once and declares what it exports; the only file that touches ctypes signatures."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

from slacktier.cache_policy import CachePolicy
from slacktier.errors import ConfigError

LIBRARY: Final = Path(__file__).with_name("libslacktier_io.so")


class CLayout(ctypes.Structure):
    """st_layout in st_page.h."""

    _fields_ = [
        ("row_count", c_uint64),
        ("page_count", c_uint64),
        ("payload_bytes", c_uint32),
        ("scale_bytes", c_uint32),
        ("record_bytes", c_uint32),
        ("rows_per_page", c_uint32),
        ("layer_id", c_uint32),
        ("epoch", c_uint32),
        ("crc_seed", c_uint32),
        ("stripe_count", c_uint32),
    ]


CACHE_POLICIES: Final = (CachePolicy.CLOCK, CachePolicy.S3FIFO)  # by st_cache_policy


class CLayerConfig(ctypes.Structure):
    """st_layer_config in slacktier_io.h."""

    _fields_ = [
        ("cache_rows", c_uint64), ("cache_policy", c_uint32), ("source_count", c_uint32), ("sources", c_void_p * 4),
    ]  # fmt: skip


class CCoreConfig(ctypes.Structure):
    """st_core_config in slacktier_io.h."""

    _fields_ = [
        ("layer_count", c_uint32),
        ("rank", c_uint32),
        ("tp", c_uint32),
        ("io_threads", c_uint32),
        ("queue_depth", c_uint32),
        ("backend", c_uint32),
        ("spin_us", c_uint32),
        ("lookups_max", c_uint64),
    ]


class CLayerResult(ctypes.Structure):
    """st_layer_result in slacktier_io.h."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "lookups", "owned", "hits", "repeats", "misses", "pages", "spills", "retries",
            "pass_ns", "resolve_ns", "read_ns", "arrived_ns", "wait_ns", "host_hits",
        )
    ]  # fmt: skip


class CFaultReport(ctypes.Structure):
    """st_fault_report in slacktier_io.h."""

    _fields_ = [
        ("error", c_int32),
        ("fault", c_int32),
        ("replica", c_uint32),
        ("reserved", c_uint32),
        ("row_id", c_uint64),
        ("page_id", c_uint64),
        ("bytes", c_int64),
    ]


class CLayerStats(ctypes.Structure):
    """st_layer_stats in slacktier_io.h."""

    COUNTS: Final = (
        "steps", "lookups", "owned", "hits", "repeats", "misses", "pages", "spills", "evictions",
        "retries", "failed_reads", "bad_records", "read_errors", "failed_steps", "timeouts",
        "cache_rows", "cache_bytes", "directory_bytes", "host_hits", "host_rows", "host_bytes",
    )  # fmt: skip
    _fields_ = [*((name, c_uint64) for name in COUNTS), ("replica_rows", c_uint64 * 4)]


class CRowsCounters(ctypes.Structure):
    """st_rows_counters in st_rows.h."""

    _fields_ = [(name, c_uint64) for name in ("requests", "rows", "bytes", "refused")]


class CStepLayer(ctypes.Structure):
    """st_step_layer in st_step_path.h."""

    _fields_ = [
        ("mail", c_void_p),
        ("row_ids", c_void_p),
        ("answer", c_void_p),
        ("line_bytes", c_uint32),
        ("reserved", c_uint32),
    ]


class CStepSettings(ctypes.Structure):
    """st_step_settings in st_step_path.h."""

    _fields_ = [("timeout_ns", c_uint64), ("spin_ns", c_uint64), ("idle_poll_ns", c_uint64)]


class CStepStatus(ctypes.Structure):
    """st_step_status in st_step_path.h."""

    _fields_ = [
        ("steps", c_uint64),
        ("failed_steps", c_uint64),
        ("error", c_int32),
        ("layer", c_uint32),
        ("failed_step", c_uint64),
        ("sleeps", c_uint64),
    ]


class CRdmaSettings(ctypes.Structure):
    """st_rdma_settings in st_rdma.h."""

    _fields_ = [
        ("device", ctypes.c_char * 64),
        *(
            (name, c_uint32)
            for name in (
                "port", "gid_index", "threads", "queue_pairs", "depth", "unit", "ack_timeout", "retry_count",
                "service_level", "traffic_class",
            )
        ),
        ("timeout_ns", c_uint64),
    ]  # fmt: skip


class CRdmaEnd(ctypes.Structure):
    """st_rdma_end in st_rdma.h."""

    _fields_ = [("number", c_uint32), ("first_psn", c_uint32)]


class CRdmaPort(ctypes.Structure):
    """st_rdma_port in st_rdma.h."""

    _fields_ = [
        ("gid", ctypes.c_uint8 * 16),
        ("lid", c_uint32),
        ("mtu", c_uint32),
        ("ethernet", c_uint32),
        ("reads_max", c_uint32),
    ]


class CRdmaRegion(ctypes.Structure):
    """st_rdma_region in st_rdma.h."""

    _fields_ = [("address", c_uint64), ("byte_count", c_uint64), ("key", c_uint32), ("reserved", c_uint32)]


class CRdmaCounters(ctypes.Structure):
    """st_rdma_counters in st_rdma.h."""

    _fields_ = [
        (name, c_uint64)
        for name in (
            "batches", "rows", "reads", "bytes", "signalled",
            "retry_exceeded", "remote_access", "flushed", "other_errors", "wrong_length", "late_batches", "connections",
        )
    ]  # fmt: skip


_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "st_layout_init": (
        c_int,
        [POINTER(CLayout), c_uint64, c_uint32, c_uint32, c_char_p, c_uint32, c_uint32, c_uint32],
    ),
    "st_crc32c": (c_uint32, [c_uint32, c_void_p, ctypes.c_size_t]),
    "st_pages_encode": (c_int, [POINTER(CLayout), c_uint64, c_uint64, c_void_p, c_void_p, c_void_p]),
    "st_records_encode": (c_int, [POINTER(CLayout), c_void_p, c_uint64, c_void_p, c_void_p]),
    "st_pages_verify": (
        c_int,
        [POINTER(CLayout), c_uint64, c_uint64, c_void_p, POINTER(c_int), POINTER(c_uint64), POINTER(c_uint64)],
    ),
    "st_pages_unpack": (c_int, [POINTER(CLayout), c_uint64, c_uint64, c_void_p, c_void_p, c_void_p]),
    "st_pattern_fill": (None, [c_uint64, c_uint64, c_uint64, c_uint32, c_uint32, c_void_p, c_void_p]),
    "st_pattern_check": (
        c_uint64,
        [c_uint64, c_void_p, c_uint64, c_uint32, c_uint32, c_void_p, c_uint64, POINTER(c_uint64)],
    ),
    "st_source_open_files": (c_int, [POINTER(c_char_p), c_uint32, POINTER(CLayout), POINTER(c_void_p)]),
    "st_source_open_memory": (c_int, [POINTER(c_char_p), c_uint32, POINTER(CLayout), POINTER(c_void_p)]),
    "st_source_open_borrowed": (c_int, [c_void_p, POINTER(CLayout), POINTER(c_void_p)]),
    "st_source_open_emulated": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "st_source_open_pattern": (c_int, [c_uint64, POINTER(CLayout), POINTER(c_void_p)]),
    "st_source_memory": (c_void_p, [c_void_p, POINTER(c_uint64)]),
    "st_rows_client_open": (c_int, [c_int, POINTER(CLayout), c_uint32, POINTER(c_void_p)]),
    "st_rows_client_close": (None, [c_void_p]),
    "st_rows_fetch": (c_int, [c_void_p, c_void_p, c_uint32, c_void_p, POINTER(c_uint32)]),
    "st_rows_source_open": (c_int, [c_int, POINTER(CLayout), c_uint32, POINTER(c_void_p)]),
    "st_rows_source_attach": (c_int, [c_void_p, c_int, POINTER(CLayout)]),
    "st_remote_wait_down": (c_int, [c_void_p, c_uint64]),
    "st_remote_state": (c_int, [c_void_p]),
    "st_remote_cancel": (None, [c_void_p]),
    "st_rows_serve": (c_int, [c_void_p, c_int, c_uint32, POINTER(CRowsCounters)]),
    "st_rdma_available": (c_int, [c_char_p]),
    "st_rdma_open": (c_int, [POINTER(CRdmaSettings), POINTER(CLayout), POINTER(c_void_p), c_char_p]),
    "st_rdma_close": (None, [c_void_p]),
    "st_rdma_prepare": (c_int, [c_void_p, POINTER(CRdmaEnd), POINTER(CRdmaPort), c_char_p]),
    "st_rdma_connect": (
        c_int,
        [c_void_p, POINTER(CRdmaEnd), POINTER(CRdmaPort), POINTER(CRdmaRegion), c_int, c_char_p],
    ),
    "st_rdma_try": (c_int, [c_void_p, c_char_p]),
    "st_rdma_limits": (None, [c_void_p, POINTER(c_uint32), POINTER(c_uint32)]),
    "st_rdma_source": (c_int, [c_void_p, POINTER(c_void_p)]),
    "st_rdma_read_counters": (None, [c_void_p, POINTER(CRdmaCounters)]),
    "st_rdma_use_layout": (c_int, [c_void_p, POINTER(CLayout)]),
    "st_rdma_source_attach": (None, [c_void_p]),
    "st_source_pages": (c_int, [c_void_p]),
    "st_source_close": (None, [c_void_p]),
    "st_delay_set": (c_int, [c_char_p, c_double, c_double, c_double]),
    "st_sleep_until": (None, [c_uint64]),
    "st_core_open": (c_int, [POINTER(CCoreConfig), POINTER(CLayerConfig), POINTER(c_void_p)]),
    "st_core_close": (None, [c_void_p]),
    "st_core_backend": (c_int, [c_void_p, POINTER(c_int)]),
    "st_core_is_polled": (c_int, [c_void_p]),
    "st_step_begin": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_uint64)]),
    "st_step_wait": (c_int, [c_void_p, c_uint32, c_uint64, POINTER(CLayerResult)]),
    "st_step_gather": (c_int, [c_void_p, c_uint32, c_void_p, c_uint64]),
    "st_step_end": (c_int, [c_void_p]),
    "st_core_fault": (c_int, [c_void_p, c_uint32, POINTER(CFaultReport)]),
    "st_core_set_cache_rows": (c_int, [c_void_p, c_uint32, c_uint64]),
    "st_core_set_host_rows": (c_int, [c_void_p, c_uint32, c_uint64]),
    "st_core_set_sources": (c_int, [c_void_p, c_uint32, POINTER(c_void_p), c_uint32, c_int]),
    "st_core_set_own_reads": (c_int, [c_void_p, c_int]),
    "st_core_set_dedup": (c_int, [c_void_p, c_int]),
    "st_core_seed": (
        c_int,
        [c_void_p, c_uint32, POINTER(CLayout), c_void_p, c_void_p, c_uint64, POINTER(c_uint64), POINTER(c_uint32)],
    ),
    "st_core_drop_cache": (c_int, [c_void_p, c_uint32]),
    "st_step_path_open": (c_int, [c_void_p, POINTER(CStepLayer), POINTER(CStepSettings), POINTER(c_void_p)]),
    "st_step_path_close": (None, [c_void_p]),
    "st_step_path_arm": (None, [c_void_p]),
    "st_step_path_pause": (c_int, [c_void_p, c_uint64]),
    "st_step_path_resume": (None, [c_void_p]),
    "st_step_path_status": (None, [c_void_p, POINTER(CStepStatus)]),
    "st_step_path_clear": (None, [c_void_p]),
    "st_step_path_records": (c_uint32, [c_void_p, c_void_p, c_uint32]),
    "st_core_stats": (c_int, [c_void_p, c_uint32, POINTER(CLayerStats)]),
}


@cache
def library() -> ctypes.CDLL:
    """The loaded library; raises ConfigError with the remedy if it was not built."""
    if not LIBRARY.exists():
        raise ConfigError(f"{LIBRARY.name} is not built", hint="run `make setup`, or `make native` in the repository")
    lib = ctypes.CDLL(str(LIBRARY), use_errno=False)
    for name, (restype, argtypes) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    return lib
