# SPDX-License-Identifier: Apache-2.0
"""What the bench asks of a device: captured graphs, instants, pinned memory. A GPU; or the CPU, to test the bench."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from slacktier_engine import driver


class Graph(Protocol):
    """A captured piece of work; result is what its function returned in the capture, and holds the last replay's."""

    result: Any

    def replay(self) -> None: ...


class Device(Protocol):
    """The calling thread's device."""

    torch: torch.device
    name: str

    def capture(self, queue: Callable[[], Any], warm_ups: int = 2) -> Graph:
        """queue is run warm_ups times, as an engine's own warm-up does, and then captured."""

    def instant(self) -> Any:
        """A point on the current stream, for elapsed_us."""

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """After both are over."""

    def reach(self, instant: Any) -> None:
        """Wait until the device is there."""

    def synchronize(self) -> None: ...

    def rest(self, cycles: int) -> None:
        """Keep the stream idle for so many cycles."""

    def pin(self, address: int, byte_count: int) -> None: ...

    def unpin(self, address: int) -> None: ...


class _CudaGraph:
    def __init__(self, queue: Callable[[], Any], mode: str) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, capture_error_mode=mode):
            self.result = queue()

    def replay(self) -> None:
        self._graph.replay()


class CudaDevice:
    """A CUDA GPU. capture_mode: engines use "global"; torch's own NCCL wants "thread_local"."""

    def __init__(self, index: int = 0, capture_mode: str = "global") -> None:
        self._capture_mode = capture_mode
        torch.cuda.set_device(index)
        self.torch = torch.device("cuda", index)
        self.name = torch.cuda.get_device_name(index)

    def capture(self, queue: Callable[[], Any], warm_ups: int = 2) -> Graph:
        for _ in range(warm_ups):
            queue()
        torch.cuda.synchronize()
        return _CudaGraph(queue, self._capture_mode)

    def instant(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def elapsed_us(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e3 * float(begin.elapsed_time(end))

    def reach(self, instant: torch.cuda.Event) -> None:
        instant.synchronize()

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def rest(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)

    def pin(self, address: int, byte_count: int) -> None:
        driver.pin(address, byte_count)

    def unpin(self, address: int) -> None:
        driver.unpin(address)


class _Again:
    """No capture: a replay runs the function again, into the results of the first time."""

    def __init__(self, queue: Callable[[], Any]) -> None:
        self._queue = queue
        self.result = queue()

    def replay(self) -> None:
        found = self._queue()
        if isinstance(found, torch.Tensor):
            self.result.copy_(found)


class HostDevice:
    """This thread, with kernels in Triton's interpreter; its times are those of the interpreter and mean nothing."""

    def __init__(self) -> None:
        self.torch = torch.device("cpu")
        self.name = f"no GPU, {os.cpu_count()} processors"

    def capture(self, queue: Callable[[], Any], warm_ups: int = 2) -> Graph:
        return _Again(queue)

    def instant(self) -> float:
        return time.perf_counter()

    def elapsed_us(self, begin: float, end: float) -> float:
        return 1e6 * (end - begin)

    def reach(self, instant: float) -> None: ...

    def synchronize(self) -> None: ...

    def rest(self, cycles: int) -> None: ...

    def pin(self, address: int, byte_count: int) -> None: ...

    def unpin(self, address: int) -> None: ...
