# SPDX-License-Identifier: Apache-2.0
"""What stands behind an arm: how it is put in force before a block, where requests go, what it reports afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from slacktier.errors import SlackTierError
from slacktier.tiers import Tier
from slacktier_cli.demo.arms import Arm, LayerSource
from slacktier_cli.demo.server import ServeOptions, ServerProcess, running_server
from slacktier_cli.demo.server_report import ServerReport, parse_report
from slacktier_cli.demo.tables import StagedTable, TableStore
from slacktier_cli.sizes import parse_size
from slacktier_loadtest.arms import PAGE_CACHE
from slacktier_loadtest.client import Target
from slacktier_loadtest.memory_cap import MemoryCap, drop_page_cache, memory_cap
from slacktier_loadtest.row_server import RowServerProcess, running_row_server
from slacktier_loadtest.scenario import EmulatedSpec

_READY_S: Final = 180.0
_IDLE_S: Final = 60.0
_POLL_S: Final = 0.05
_DEVICES: Final = f"loadtest-{os.getpid()}"


class Server(Protocol):
    """One arm's server."""

    @property
    def urls(self) -> tuple[str, ...]:
        """Where requests go; users are dealt over several."""

    def enter(self) -> None:
        """Put the arm in force on an idle server and start its counts anew; raises SlackTierError."""

    def reports(self) -> tuple[ServerReport, ...]:
        """What the servers themselves counted since enter(); empty where they do not tell."""

    def check(self) -> None:
        """Raises SlackTierError, with what its log says, if a server of ours has ended."""


def until(seconds: float, what: str, is_so: Callable[[], bool], check: Callable[[], None]) -> None:
    """Poll; an error counts as `not yet`. Raises SlackTierError after so many seconds."""
    deadline, last = time.monotonic() + seconds, ""
    while time.monotonic() < deadline:
        check()
        try:
            if is_so():
                return
        except SlackTierError as exc:
            last = f": {exc}"
        time.sleep(_POLL_S)
    raise SlackTierError(f"{what}: not so within {seconds:g} s{last}")


class EmulatedGroup:
    """Servers of the emulated engine on the same regions: one, or several that share the emulated devices."""

    def __init__(
        self, processes: Sequence[ServerProcess], tables: Sequence[StagedTable], spec: EmulatedSpec,
        rows: RowServerProcess | None,
    ) -> None:  # fmt: skip
        self._processes, self._rows = tuple(processes), rows
        self._targets = tuple(Target(process.endpoint.host, process.endpoint.port) for process in processes)
        self._tables, self._spec = tuple(tables), spec
        self.urls = tuple(f"http://{target.host}:{target.port}" for target in self._targets)

    def check(self) -> None:
        for process in self._processes:
            process.check()
        if self._rows is not None:
            self._rows.check()

    def wait_ready(self) -> None:
        for target in self._targets:
            until(_READY_S, "/readyz", partial(_is_ready, target), self.check)

    def wait_idle(self) -> None:
        """A block's last requests may still be running on the server when their clients are gone."""
        for target in self._targets:
            until(_IDLE_S, "an idle server", partial(_is_idle, target), self.check)

    def control(self, body: Mapping[str, Any]) -> None:
        for target in self._targets:
            target.call("POST", "/slacktier/control", body)

    def place(self, arm: Arm | None) -> None:
        """An arm with empty caches; None leaves the sources as they are."""
        self.wait_idle()
        self.control({"layers": [{"layer_id": table.layer_id, "cache_rows": 0} for table in self._tables]})
        if self._spec.sessions is not None:
            self.control({"profile": {"sessions": self._spec.sessions}})
        if arm is not None:
            self.control({"layers": [self._change(arm, index) for index in range(len(self._tables))]})
        for target in self._targets:
            target.call("GET", "/slacktier/report?reset=true")

    def _change(self, arm: Arm, index: int) -> dict[str, Any]:
        rows = arm.cache_rows(index, self._spec.cache_rows, len(self._tables))
        table = self._tables[index]
        return {"layer_id": table.layer_id, "cache_rows": rows, **self._source(arm.source(index), table)}

    def _source(self, source: LayerSource, table: StagedTable) -> dict[str, Any]:
        if source.tier is Tier.TCP and self._rows is not None:
            return {"tier": "tcp", "address": self._rows.address, "token_file": str(self._rows.token_file.resolve())}
        change: dict[str, Any] = {"tier": source.tier.value, "paths": [str(table.path.resolve())]}
        if source.tier is not Tier.EMULATED:
            return change
        # A device of this run alone: a delay's queue is shared by all processes of the machine that name it.
        return {**change, "delay": source.delay, "device": f"{_DEVICES}-{source.delay}"}

    def reports(self) -> tuple[ServerReport, ...]:
        return tuple(parse_report(target.call("GET", "/slacktier/report")) for target in self._targets)


def _is_ready(target: Target) -> bool:
    return bool(target.call("GET", "/readyz")["ready"])


def _is_idle(target: Target) -> bool:
    return not any(target.call("GET", "/slacktier/status")["requests"].values())


def _remove_devices() -> None:
    """The queues of this run's emulated devices, once nobody uses them."""
    for path in Path("/dev/shm").glob(f"slacktier-emulated-{os.getuid()}-{_DEVICES}-*"):  # noqa: S108 - where they lie
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class EmulatedServer:
    """An arm on a group; `arm` None: the group serves nothing else."""

    group: EmulatedGroup
    arm: Arm | None

    @property
    def urls(self) -> tuple[str, ...]:
        return self.group.urls

    def enter(self) -> None:
        self.group.place(self.arm)

    def reports(self) -> tuple[ServerReport, ...]:
        return self.group.reports()

    def check(self) -> None:
        self.group.check()


class EmulatedServers:
    """Starts what the arms need: one group that switches between them, and one of its own for the page cache."""

    def __init__(
        self, spec: EmulatedSpec, store: TableStore, tables: Sequence[StagedTable], out: Path, users: int
    ) -> None:
        self._spec, self._store, self._tables, self._out, self._users = spec, store, tuple(tables), out, users

    def start(self, arms: Sequence[Arm], stack: ExitStack) -> dict[str, EmulatedServer]:
        """Running servers by arm name; they end when the stack does."""
        stack.callback(_remove_devices)
        servers: dict[str, EmulatedServer] = {}
        switched = [arm for arm in arms if arm.name != PAGE_CACHE]
        if switched:
            has_tcp = any(Tier.TCP in (arm.first.tier, arm.later.tier) for arm in switched)
            rows = stack.enter_context(running_row_server(self._tables, self._out)) if has_tcp else None
            group = self._group("nvme", "server", (), (), stack, rows)
            servers |= {arm.name: EmulatedServer(group, arm) for arm in switched}
        if len(switched) < len(arms):
            servers[PAGE_CACHE] = EmulatedServer(self._capped(stack), None)
        return servers

    def _capped(self, stack: ExitStack) -> EmulatedGroup:
        cap: MemoryCap = stack.enter_context(memory_cap())
        for table in self._tables:
            drop_page_cache(table.path)
        # Threads, since a page that is not there holds its reader up; as many as preadv gets.
        group = self._group(
            f"nvme@{PAGE_CACHE}", PAGE_CACHE, cap.wrapper, ("--io-threads", "16", "--backend", "posix"), stack
        )
        cap.limit_page_cache(parse_size(self._spec.page_cache))
        return group

    def _group(
        self, source: str, name: str, wrapper: Sequence[str], further: Sequence[str], stack: ExitStack,
        rows: RowServerProcess | None = None,
    ) -> EmulatedGroup:  # fmt: skip
        spec = self._spec
        further = ("--prefix-cache-tokens", str(spec.prefix_cache_tokens), *further)
        options = [
            ServeOptions(
                self._tables, self._store.config_path, spec.tp, spec.profile, self._out / f"{name}-{index}.log",
                recording=None, sessions=max(256, self._users), source=source, further=further, wrapper=wrapper,
            )
            for index in range(spec.instances)
        ]  # fmt: skip
        processes = [stack.enter_context(running_server(each)) for each in options]
        group = EmulatedGroup(processes, self._tables, spec, rows)
        group.wait_ready()
        return group
