# SPDX-License-Identifier: Apache-2.0
"""Where the step path's work is queued: a CUDA side stream, or (for tests without a GPU) this thread."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from slacktier.errors import DeadlineMissedError
from slacktier_engine import driver


class StepStreams(Protocol):
    """fork: side work follows what the caller's stream has queued; join: the caller's stream follows a mark."""

    def alloc(self, byte_count: int) -> int:
        """Address of memory that both sides can use."""

    def free(self, address: int) -> None: ...

    def fork(self) -> None: ...

    @contextmanager
    def side(self) -> Iterator[None]: ...

    def wait_flag(self, address: int) -> None:
        """Queue a wait for the word at address to be 1; on the side."""

    def lower_flag(self, address: int) -> None:
        """Queue a reset of the word at address to 0; on the side."""

    def copy(self, destination: int, source: int, byte_count: int) -> None:
        """Queue a copy from memory of alloc() to the device's; on the side."""

    def mark(self) -> object:
        """A point on the side, for join."""

    def join(self, mark: object) -> None: ...


class CudaStreams:
    """The side stream of one device; usable eagerly and under capture."""

    def __init__(self, device: torch.device) -> None:
        self._side = torch.cuda.Stream(device)

    def alloc(self, byte_count: int) -> int:
        return driver.pinned_alloc(byte_count)

    def free(self, address: int) -> None:
        driver.pinned_free(address)

    def fork(self) -> None:
        self._side.wait_stream(torch.cuda.current_stream())

    @contextmanager
    def side(self) -> Iterator[None]:
        with torch.cuda.stream(self._side):
            yield

    def wait_flag(self, address: int) -> None:
        driver.stream_wait_equal(self._side.cuda_stream, address, 1)

    def lower_flag(self, address: int) -> None:
        driver.stream_write(self._side.cuda_stream, address, 0)

    def copy(self, destination: int, source: int, byte_count: int) -> None:
        driver.copy_to_device(self._side.cuda_stream, destination, source, byte_count)

    def mark(self) -> object:
        event = torch.cuda.Event()
        event.record(self._side)
        return event

    def join(self, mark: object) -> None:
        torch.cuda.current_stream().wait_event(mark)


class HostStreams:
    """Everything at once on the calling thread, over ordinary memory; kernels run in Triton's interpreter."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._memory: dict[int, torch.Tensor] = {}

    def alloc(self, byte_count: int) -> int:
        buffer = torch.zeros(byte_count + 64, dtype=torch.uint8)
        address = (int(buffer.data_ptr()) + 63) // 64 * 64
        self._memory[address] = buffer
        return address

    def free(self, address: int) -> None:
        del self._memory[address]

    def fork(self) -> None: ...

    @contextmanager
    def side(self) -> Iterator[None]:
        yield

    def wait_flag(self, address: int) -> None:
        word = ctypes.c_uint32.from_address(address)
        until_s = time.monotonic() + self._timeout_s
        while word.value != 1:
            if time.monotonic() > until_s:
                raise DeadlineMissedError(
                    f"flag not raised after {self._timeout_s:g} s", tier="", operation="wait", target="step path"
                )

    def lower_flag(self, address: int) -> None:
        ctypes.c_uint32.from_address(address).value = 0

    def copy(self, destination: int, source: int, byte_count: int) -> None:
        ctypes.memmove(destination, source, byte_count)

    def mark(self) -> object:
        return None

    def join(self, mark: object) -> None: ...
