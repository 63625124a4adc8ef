# SPDX-License-Identifier: Apache-2.0
"""A memory node as a process of its own, which a test can stop, kill, and give orders to."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from slacktier.errors import SlackTierError
from slacktier.page import PAGE_BYTES
from slacktier.tiers import Tier
from slacktier_native import rdma_device
from slacktier_native.pages import PageCodec
from slacktier_native.rdma_server import MemoryNode
from slacktier_native.sources import MemorySpec, SourceSpec

# Nodes are forked from a process that has imported everything once: under emulation an import takes seconds.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["node"])
rdma_device.load_pyverbs()
Orders = tuple[tuple[str, dict[str, Any]], ...]


class FaultyNode(MemoryNode):
    """A node that can be made to lie, or to fail without cutting its clients off.

    first  orders (method and arguments) that are obeyed before the first client is let in
    """

    first: Orders = ()

    def _register(self, device: rdma_device.NodeDevice, spec: SourceSpec | MemorySpec) -> None:
        super()._register(device, spec)
        for name, arguments in self.first:
            getattr(self, name)(**arguments)

    def overwrite(self, of: int, **changes: Any) -> None:
        """Where clients read this layer's rows there lie from now on those of another layer, epoch or table."""
        region = self._of(of)
        imposter = PageCodec(replace(region.superblock, **changes))
        sb = imposter.superblock
        pages = _array_at(region.facts.address, sb.page_count * PAGE_BYTES)
        weights = np.empty((sb.row_count, sb.payload_bytes), np.uint8)
        scales = np.empty((sb.row_count, sb.scale_bytes), np.uint8)
        imposter.unpack(0, sb.page_count, pages, weights, scales)
        imposter.encode(0, sb.page_count, weights, scales, pages)

    def tell(self, layer_id: int, **changes: int) -> None:
        """New clients are told another address, length or key."""
        region = self._of(layer_id)
        region.facts = region.facts.model_copy(update=changes)

    def swap(self, first: int, second: int) -> None:
        """New clients of each of two layers are sent to the other one's memory."""
        one, other = self._of(first), self._of(second)
        one.facts, other.facts = other.facts, one.facts

    def restage(self, layer_id: int, *, memory_too: bool) -> None:
        """New clients are told that the table was staged anew, which may be so."""
        region = self._of(layer_id)
        epoch = region.superblock.epoch + 1
        if memory_too:
            self.overwrite(layer_id, epoch=epoch)
        region.superblock = replace(region.superblock, epoch=epoch)

    def deregister(self, layer_id: int) -> None:
        """Reads fail from now on; unlike withdraw() this leaves the clients connected."""
        self._of(layer_id).registered.close()

    def cut_off(self, layer_id: int) -> None:
        self.withdraw(self._of(layer_id).superblock.table_uuid, layer_id)

    def _of(self, layer_id: int) -> Any:
        return next(region for (_, layer), region in self._regions.items() if layer == layer_id)


def _array_at(address: int, byte_count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer((ctypes.c_uint8 * byte_count).from_address(address), np.uint8)


def _serve(
    orders: Connection, token: bytes, port: int, device: str, regions: Sequence[Path], first: Orders
) -> None:  # fmt: skip
    """A node's process: its address first, then the node's counters after each order (a method and its arguments)."""
    logging.basicConfig(level=logging.WARNING)
    try:
        node = FaultyNode([SourceSpec(Tier.DRAM, (region,)) for region in regions], token, port=port, device=device)
        node.first = first
        with node:
            orders.send("{}:{}".format(*node.address))
            while True:
                name, arguments = orders.recv()
                if name:
                    getattr(node, name)(**arguments)
                orders.send(node.stats())
    except SlackTierError as exc:
        orders.send(RuntimeError(f"{exc}; hint: {exc.hint}"))


class NodeProcess:
    """Such a process, with the regions at these paths loaded into its memory."""

    def __init__(
        self, token: bytes, regions: Sequence[Path], port: int = 0, first: Orders = (), device: str = ""
    ) -> None:
        self._orders, theirs = PROCESSES.Pipe()
        arguments = (theirs, token, port, device, tuple(regions), first)
        self.process = PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()
        self.address: str = self._answer()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def order(self, name: str = "", **arguments: Any) -> dict[str, int]:
        """Do what FaultyNode's method of that name does; the node's counters afterwards."""
        self._orders.send((name, arguments))
        return dict(self._answer())

    def _answer(self) -> Any:
        answer = self._orders.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def freeze(self) -> None:
        """Stop the process where it is, all of its threads; its memory and its device's work stay."""
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    @property
    def stat(self) -> list[str]:
        """The fields of /proc/PID/stat behind the name: state first, processor time in 11 and 12."""
        return Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()

    @property
    def _pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._orders.close()
