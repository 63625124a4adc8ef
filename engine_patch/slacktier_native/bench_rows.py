# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench rows`: rows over TCP on loopback, from one copy in another process, to one client and to several.

Each client asks for so many random rows at a fixed pace, as a decode step does, and checks every record. What several
clients lose to each other is the ratio to a lone client at the same pace, measured in alternating blocks.
"""

from __future__ import annotations

import multiprocessing
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from slacktier.page import RowFormat, Superblock
from slacktier_native.memory_table import MemoryTable
from slacktier_native.pages import pattern_fill
from slacktier_native.rows import RowClient, RowServer
from slacktier_native.sources import MemorySpec

TABLE: Final = uuid.UUID(int=1)
TIMEOUT_S: Final = 10.0  # a busy machine is slow, not dead
PAYLOAD_BYTES: Final = 256
SCALE_BYTES: Final = 8


def _table(row_count: int) -> MemoryTable:
    sb = Superblock(
        table_uuid=TABLE, layer_id=1, epoch=1, row_count=row_count, payload_bytes=PAYLOAD_BYTES,
        scale_bytes=SCALE_BYTES, row_format=RowFormat.FP8_E4M3_BLOCK_E8M0, model="bench", revision="", source="pattern",
    )  # fmt: skip
    weights, scales = np.empty((row_count, PAYLOAD_BYTES), np.uint8), np.empty((row_count, SCALE_BYTES), np.uint8)
    pattern_fill(1, 0, row_count, PAYLOAD_BYTES, SCALE_BYTES, weights, scales)
    return MemoryTable(sb, weights, scales)


def _serve(row_count: int, token: bytes, channel: Connection) -> None:
    with RowServer([MemorySpec(_table(row_count))], token, timeout_s=TIMEOUT_S) as server:
        channel.send(server.address)
        channel.poll(None)  # until the other end is closed


@contextmanager
def _server(row_count: int, token: bytes) -> Iterator[tuple[str, int]]:
    """A server in a process of its own; its address."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(row_count, token, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        host, port = ours.recv()
        yield host, port
    finally:
        ours.close()
        process.join()


class _Client:
    """Requests at a pace, their times in ms."""

    def __init__(self, address: tuple[str, int], token: bytes, rows: int, row_count: int, seed: int) -> None:
        self._client = RowClient(*address, token, TABLE, 1, timeout_s=TIMEOUT_S)
        self._rows, self._row_count, self._rng = rows, row_count, np.random.default_rng(seed)

    def run(self, requests: int, pace_s: float, to: list[float]) -> None:
        due = time.monotonic() + float(self._rng.random()) * pace_s
        for _ in range(requests):
            ids = self._rng.integers(0, self._row_count, self._rows, dtype=np.uint32)
            time.sleep(max(0.0, due - time.monotonic()))
            due += pace_s
            start = time.perf_counter()
            self._client.fetch(ids)
            to.append((time.perf_counter() - start) * 1e3)

    def close(self) -> None:
        self._client.close()


def _block(clients: list[_Client], requests: int, pace_s: float, to: list[list[float]]) -> None:
    threads = [
        threading.Thread(target=client.run, args=(requests, pace_s, times))
        for client, times in zip(clients, to, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run(
    *, rows: int = 700, clients: int = 8, pace_ms: float = 29.0, requests: int = 100, blocks: int = 5,
    row_count: int = 200_000,
) -> dict[str, Any]:  # fmt: skip
    """Times of one request in ms.

    returns  {"p50_ms", "p99_ms": of a lone client asking without pause; "lone_p50_ms": of one at the pace;
             "clients_p50_ms": of each of several at the pace; "ratio_to_lone": their worst median to that of the lone}
    """
    token = secrets.token_bytes(32)
    busy: list[float] = []
    lone: list[float] = []
    shared: list[list[float]] = [[] for _ in range(clients)]
    with _server(row_count, token) as address, ExitStack() as stack:
        opened = [_Client(address, token, rows, row_count, seed) for seed in range(clients)]
        for client in opened:
            stack.callback(client.close)
        _block(opened, 5, 0.0, [[] for _ in opened])  # warm up
        for _ in range(blocks):
            _block(opened[:1], 5 * requests, 0.0, [busy])
            _block(opened[:1], requests, pace_ms / 1e3, [lone])
            _block(opened, requests, pace_ms / 1e3, shared)
    medians = [float(np.median(times)) for times in shared]
    lone_p50 = float(np.median(lone))
    return {
        "rows": rows, "clients": clients, "pace_ms": pace_ms, "requests": len(busy), "blocks": blocks,
        "p50_ms": float(np.median(busy)), "p99_ms": float(np.percentile(busy, 99)),
        "lone_p50_ms": lone_p50, "lone_p99_ms": float(np.percentile(lone, 99)),
        "clients_p50_ms": medians, "clients_p99_ms": [float(np.percentile(times, 99)) for times in shared],
        "ratio_to_lone": max(medians) / lone_p50,
    }  # fmt: skip
