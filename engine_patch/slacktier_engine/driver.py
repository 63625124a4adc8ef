# SPDX-License-Identifier: Apache-2.0
"""The few CUDA driver calls that torch has no face for: exact pinned allocations, and a stream's wait for a word.

Loaded late, so that the package imports without a GPU. Every call is made by the caller's thread, in the context
that torch made current there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from slacktier.errors import ConfigError, SlackTierError

_PORTABLE_MAPPED: Final = 1 | 2  # CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP; the same bits for registering
_WAIT_VALUE_EQ: Final = 1
_CAPTURE_RELAXED: Final = 2

_SIGNATURES: Final[dict[str, list[Any]]] = {
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemHostRegister_v2": [c_void_p, c_size_t, c_uint],
    "cuMemHostUnregister": [c_void_p],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuStreamWriteValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuThreadExchangeStreamCaptureMode": [POINTER(c_int)],
    "cuStreamWaitValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
}


class DriverError(SlackTierError):
    """A CUDA driver call failed."""


@cache
def _driver() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libcuda.so.1")
    except OSError as exc:
        raise ConfigError(f"no CUDA driver: {exc}", hint="this part needs an NVIDIA GPU") from exc
    for name, argtypes in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = c_int, argtypes
    return lib


def _call(name: str, *arguments: Any) -> None:
    lib = _driver()
    rc = getattr(lib, name)(*arguments)
    if rc:
        text = c_char_p()
        lib.cuGetErrorName(rc, ctypes.byref(text))
        raise DriverError(f"{name}: {(text.value or b'unknown').decode()} ({rc})")


def pinned_alloc(byte_count: int) -> int:
    """Address of byte_count bytes of pinned memory, the same on host and device; not zeroed."""
    address = c_void_p()
    _call("cuMemHostAlloc", ctypes.byref(address), byte_count, _PORTABLE_MAPPED)
    return int(address.value or 0)


def pinned_free(address: int) -> None:
    _call("cuMemFreeHost", address)


def pin(address: int, byte_count: int) -> None:
    """Register memory that exists already; the device uses the same address."""
    _call("cuMemHostRegister_v2", address, byte_count, _PORTABLE_MAPPED)


def unpin(address: int) -> None:
    _call("cuMemHostUnregister", address)


def copy_to_device(stream: int, destination: int, source: int, byte_count: int) -> None:
    """Queue a copy from pinned memory; inside a capture it becomes a node. A copy engine does it, no SM."""
    _call("cuMemcpyHtoDAsync_v2", destination, source, byte_count, stream)


def stream_wait_equal(stream: int, address: int, value: int) -> None:
    """Let the stream wait until the 32-bit word at address equals value; inside a capture it becomes a node.

    Costs no SM: the front end polls. A waiting warp instead costs layer 0 tens of microseconds.
    """
    _call("cuStreamWaitValue32_v2", stream, address, value, _WAIT_VALUE_EQ)


def stream_write(stream: int, address: int, value: int) -> None:
    """Let the stream write a 32-bit word when it gets there; inside a capture it becomes a node."""
    _call("cuStreamWriteValue32_v2", stream, address, value, 0)


@contextmanager
def allowed_during_capture() -> Iterator[None]:
    """What this thread calls inside (registering memory, copies) neither fails nor breaks a capture of another thread.

    Engines capture in the mode that forbids such calls to every thread that has not said so.
    """
    mode = c_int(_CAPTURE_RELAXED)
    _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        _call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
