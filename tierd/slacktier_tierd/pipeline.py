# SPDX-License-Identifier: Apache-2.0
"""Work on numbered chunks in several threads, results in order.

Each thread takes the next number, so reads, hashing, encoding and writes of different chunks overlap: the calls that
take time release the GIL. Memory is what the threads' own buffers hold; results are small.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

Scratch = TypeVar("Scratch")
Result = TypeVar("Result")


class _Run(Generic[Scratch, Result]):
    def __init__(
        self, first: int, end: int, make_scratch: Callable[[], Scratch], work: Callable[[int, Scratch], Result]
    ) -> None:
        self._next, self._end = first, end
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._make_scratch, self._work = make_scratch, work
        self.done: queue.SimpleQueue[tuple[int, Result] | BaseException] = queue.SimpleQueue()

    def stop(self) -> None:
        self._stop.set()

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= self._end or self._stop.is_set():
                return None
            self._next += 1
            return self._next - 1

    def thread(self) -> None:
        try:
            scratch = self._make_scratch()
            while (index := self._take()) is not None:
                self.done.put((index, self._work(index, scratch)))
        except BaseException as exc:  # the consumer raises it; a thread must never end in silence
            self._stop.set()
            self.done.put(exc)


def run_ordered(
    first: int, end: int, make_scratch: Callable[[], Scratch], work: Callable[[int, Scratch], Result], *, threads: int
) -> Generator[Result, None, None]:
    """work(index, scratch) for index in [first, end), in `threads` threads; yields the results by index.

    The first error of any thread is raised here, after the others have stopped. Wrap it in contextlib.closing: an
    error in the caller's loop must stop the threads before their files are closed.
    """
    run: _Run[Scratch, Result] = _Run(first, end, make_scratch, work)
    workers = [threading.Thread(target=run.thread, daemon=True) for _ in range(max(1, min(threads, end - first)))]
    for worker in workers:
        worker.start()
    waiting: dict[int, Result] = {}
    try:
        for index in range(first, end):
            while index not in waiting:
                item = run.done.get()
                if isinstance(item, BaseException):
                    raise item
                waiting[item[0]] = item[1]
            yield waiting.pop(index)
    finally:
        run.stop()
        for worker in workers:
            worker.join()
