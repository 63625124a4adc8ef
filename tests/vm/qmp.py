# SPDX-License-Identifier: Apache-2.0
"""Talks to the emulator from inside the guest: errors in sectors and hot-unplugging of its NVMe disks."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterable
from errno import EIO
from pathlib import Path
from types import TracebackType
from typing import Any

PORTS = Path("/sys/class/virtio-ports")


class Qmp:
    """A QMP conversation over a byte stream."""

    def __init__(self, stream: io.FileIO) -> None:
        self._stream = stream
        self._rest = b""
        self._nodes = itertools.count(1)
        self._debug_node: dict[str, str] = {}
        self.command("qmp_capabilities")

    def command(self, name: str, **arguments: Any) -> Any:
        """What a command returned; raises RuntimeError with the emulator's reason."""
        self._stream.write(json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = self._next()
            if "error" in answer:
                raise RuntimeError(f"{name}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]

    def wait_event(self, name: str) -> None:
        """Read on until this event comes; the test's own time limit ends what takes too long."""
        while self._next().get("event") != name:
            pass

    def _next(self) -> Any:
        while b"\n" not in self._rest:
            self._rest += self._stream.read(65536) or b""
        line, self._rest = self._rest.split(b"\n", 1)
        return json.loads(line)

    def fail_reads(self, disk: str, sectors: Iterable[int]) -> None:
        """Reads of these 512-byte sectors fail from now on, with an unrecovered read error; of all others no longer."""
        rules = [
            {"event": "none", "iotype": "read", "errno": EIO, "immediately": False, "sector": sector}
            for sector in sectors
        ]
        node, old = f"{disk}-debug{next(self._nodes)}", self._debug_node.get(disk)
        added: dict[str, Any] = {"driver": "blkdebug", "image": f"{disk}-file", "node-name": node}
        if rules:  # the emulator takes no empty list
            added["inject-error"] = rules
        self.command("blockdev-add", **added)
        reopened = {"driver": "raw", "node-name": f"{disk}-raw", "file": node}
        self.command("blockdev-reopen", options=[reopened])
        if old is not None:
            self.command("blockdev-del", **{"node-name": old})
        self._debug_node[disk] = node

    def unplug(self, disk: str) -> None:
        """Pull the disk out; returns when it is gone."""
        self.command("device_del", id=disk)
        self.wait_event("DEVICE_DELETED")

    def __enter__(self) -> Qmp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()


def open_port() -> Qmp:
    """The emulator's own end, which it offers as a serial port named qmp."""
    for name in PORTS.glob("*/name"):  # a console's port has none
        if name.read_text().strip() == "qmp":
            return Qmp(io.FileIO(f"/dev/{name.parent.name}", "r+"))
    raise RuntimeError(f"{PORTS}: no port named qmp")
