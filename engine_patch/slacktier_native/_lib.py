# SPDX-License-Identifier: Apache-2.0
"""Loads the C library once and declares what it exports; the only file that touches ctypes signatures."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

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


_PAGE_SIGNATURES: Final[dict[str, tuple[Any, list[Any]]]] = {
    "st_layout_init": (
        c_int,
        [POINTER(CLayout), c_uint64, c_uint32, c_uint32, c_char_p, c_uint32, c_uint32, c_uint32],
    ),
    "st_crc32c": (c_uint32, [c_uint32, c_void_p, ctypes.c_size_t]),
    "st_pages_encode": (c_int, [POINTER(CLayout), c_uint64, c_uint64, c_void_p, c_void_p, c_void_p]),
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
}


@cache
def library() -> ctypes.CDLL:
    """The loaded library; raises ConfigError with the remedy if it was not built."""
    if not LIBRARY.exists():
        raise ConfigError(f"{LIBRARY.name} is not built", hint="run `make setup`, or `make native` in the repository")
    lib = ctypes.CDLL(str(LIBRARY), use_errno=False)
    for name, (restype, argtypes) in _PAGE_SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes
    return lib


__all__ = ["CLayout", "c_double", "c_int64", "c_uint8", "library"]
