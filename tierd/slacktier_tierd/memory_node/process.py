# SPDX-License-Identifier: Apache-2.0
"""The memory node's own process: `python -m slacktier_tierd.memory_node.process < config.json`.

It detaches from whoever starts it, so that the rows stay where they are when Ray or the head dies; whoever comes next
finds it by its control socket. One JSON line in, one out: {"do": "status"} or {"do": "stop"}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from slacktier.errors import ConfigError, SlackTierError
from slacktier.tiers import Tier
from slacktier_native import rdma_server
from slacktier_native.memory_table import MemoryTable
from slacktier_native.rows import RowServer
from slacktier_native.sources import MemorySpec
from slacktier_tierd.memory_node.config import MemoryNodeConfig, MemoryNodeStatus
from slacktier_tierd.memory_node.loading import load_region, load_source
from slacktier_tierd.node.table_source import open_source

CONNECTIONS_MAX: Final = 1024
_REQUEST_BYTES_MAX: Final = 4096


class Endpoint(Protocol):
    """What serves a table's rows to peers."""

    @property
    def address(self) -> tuple[str, int]: ...

    def stats(self) -> dict[str, object]: ...

    def close(self) -> None: ...


def _serve_tcp(config: MemoryNodeConfig, table: MemoryTable) -> Endpoint:
    return RowServer(
        [MemorySpec(table)], config.token.encode(), host=config.host, port=config.port,
        connections_max=CONNECTIONS_MAX,
    )  # fmt: skip


def _serve_rdma(config: MemoryNodeConfig, table: MemoryTable) -> Endpoint:
    node = rdma_server.MemoryNode(
        [MemorySpec(table)], config.token.encode(), host=config.host, port=config.port, clients_max=CONNECTIONS_MAX
    )
    node.start()
    return node


# How each tier of remote memory is served.
ENDPOINTS: Final[dict[Tier, Callable[[MemoryNodeConfig, MemoryTable], Endpoint]]] = {
    Tier.TCP: _serve_tcp,
    Tier.RDMA: _serve_rdma,
}


def control_path(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.sock"


class MemoryNode:
    """Loads in one thread, answers the control socket in another."""

    def __init__(self, config: MemoryNodeConfig) -> None:
        self._config = config
        self._status = MemoryNodeStatus(name=config.name, state="loading", pid=os.getpid())
        self._endpoint: Endpoint | None = None
        self._stopped = threading.Event()
        self._asked_s = time.monotonic()

    def run(self) -> int:
        """Until told to stop, or nobody asks any more; 1 if the table could not be loaded."""
        with _listen(control_path(Path(self._config.run_dir), self._config.name)) as control:
            threading.Thread(target=self._load, daemon=True).start()
            threading.Thread(target=self._answer_all, args=(control,), daemon=True).start()
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self._stopped.set())
            while not self._stopped.wait(1.0):
                if 0 < self._config.lease_s < time.monotonic() - self._asked_s:
                    print(f"{self._config.name}: nobody has asked for {self._config.lease_s:g} s: ending", flush=True)
                    break
        if self._endpoint is not None:
            self._endpoint.close()
        return 1 if self._status.state == "failed" else 0

    def _load(self) -> None:
        try:
            serve = ENDPOINTS.get(self._config.tier)
            if serve is None:
                raise ConfigError(f"tier {self._config.tier.value}: this build serves {', '.join(ENDPOINTS)}")
            table = self._table()
            self._endpoint = serve(self._config, table)
        except (SlackTierError, OSError) as exc:
            hint = exc.hint if isinstance(exc, SlackTierError) else ""
            self._update(state="failed", message=f"{exc} ({hint})" if hint else str(exc))
            return
        sb, (host, port) = table.superblock, self._endpoint.address
        self._update(
            state="serving", host=host, port=port, table_uuid=str(sb.table_uuid), layer_id=sb.layer_id, epoch=sb.epoch,
            rows=sb.row_count, digest=sb.source_digest.hex(),
        )  # fmt: skip

    def _table(self) -> MemoryTable:
        config = self._config
        if config.table is None:
            paths = [Path(path) for path in config.paths]
            return load_region(paths, hugepages=config.hugepages, progress=self._progress)
        source = open_source(config.table)
        try:
            return load_source(source, hugepages=config.hugepages, progress=self._progress)
        finally:
            source.close()

    def _progress(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        self._update(done_bytes=done_bytes, total_bytes=total_bytes)

    def _update(self, **changes: object) -> None:
        self._status = self._status.model_copy(update=changes)

    def _answer_all(self, control: socket.socket) -> None:
        while True:
            peer, _ = control.accept()
            with peer, contextlib.suppress(OSError, ValueError):  # a peer that broke off gets no answer
                peer.settimeout(2.0)
                self._answer(peer)

    def _answer(self, peer: socket.socket) -> None:
        with peer.makefile("rw", encoding="utf-8") as stream:
            request = json.loads(stream.readline(_REQUEST_BYTES_MAX))
            self._asked_s = time.monotonic()
            stats = self._endpoint.stats() if self._endpoint is not None else {}
            stream.write(self._status.model_copy(update={"stats": stats}).model_dump_json() + "\n")
            stream.flush()
        if request.get("do") == "stop":
            self._stopped.set()


def _listen(path: Path) -> socket.socket:
    """The control socket, for this user alone; raises ConfigError if a node of that name is there already."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        raise ConfigError(f"{path}: a memory node of that name is running")
    path.unlink(missing_ok=True)
    control = socket.socket(socket.AF_UNIX)
    previous = os.umask(0o177)
    try:
        control.bind(str(path))
    finally:
        os.umask(previous)
    control.listen(16)
    return control


def _detach() -> None:
    """Leave the starter's process group, session and children: Ray ends the children of an actor that ends."""
    if os.fork():
        os._exit(0)
    os.setsid()


def main() -> None:
    """Reads its config from standard input, then detaches."""
    config = MemoryNodeConfig.model_validate_json(sys.stdin.read())
    _detach()
    log = os.open(Path(config.run_dir) / f"{config.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    try:
        sys.exit(MemoryNode(config).run())
    except SlackTierError as exc:
        print(f"{config.name}: {exc}", file=sys.stderr, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
