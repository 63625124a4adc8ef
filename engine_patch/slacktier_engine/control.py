# SPDX-License-Identifier: Apache-2.0
"""Changes at run time: sources, cache sizes, checker rate, lossy skipping. All of a binding is applied, or none of it.

Each rank applies a binding for itself, between two steps; which source a row comes from never changes its bytes, so
ranks need not change in the same step. With lossy skipping neither: a row is skipped or not by its one owner, and all
ranks get the same sum.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier_engine.lookups import LookupGroup
from slacktier_engine.runtime import EngineTier, State
from slacktier_engine.settings import Binding, load_binding
from slacktier_native.core import LayerSetup
from slacktier_native.sources import AnySource

_RECOVERY_S: Final = 1.0
_log = logging.getLogger("slacktier")


def apply_binding(tier: EngineTier, binding: Binding) -> None:
    """Put a binding in force from the next step on; raises what refused it, with the old one still in force."""
    with tier.changes:
        try:
            setups = [table.setup() for table in binding.tables or ()]
            _check(tier, binding, setups)
            with ExitStack() as undo:
                for setup in setups:
                    _apply_layer(tier, setup, undo)
                if binding.lossy is not None or binding.lossy_off:
                    tier.set_lossy(binding.lossy)
                undo.pop_all()
        except SlackTierError:
            tier.counts.bindings_refused += 1
            raise
        if binding.check_rate is not None:
            for group in tier.groups:
                group.checker.rate = binding.check_rate
        tier.counts.bindings_applied += 1
    _log.info("slacktier: binding in force: %s", binding.model_dump(exclude_none=True, mode="json"))


def apply_setups(tier: EngineTier, setups: Sequence[LayerSetup]) -> None:
    """Sources and cache shares of some layers, from the next step on: all of them, or none."""
    with tier.changes, ExitStack() as undo:
        _check_rows(tier, setups)
        for setup in setups:
            _apply_layer(tier, setup, undo)
        undo.pop_all()


def _check(tier: EngineTier, binding: Binding, setups: Sequence[LayerSetup]) -> None:
    """What can be said without touching a source."""
    if tier.state is State.STARTING:
        raise ConfigError("binding: the server is still starting")
    _check_rows(tier, setups)
    if binding.check_rate and any(group.checker.rows is None for group in tier.groups):
        raise ConfigError("check_rate: this server has no checkpoint to compare with: it was started without one")


def _check_rows(tier: EngineTier, setups: Sequence[LayerSetup]) -> None:
    for setup in setups:
        group, index = tier.place(setup.layer_id)
        rows = group.tables[index].row_count
        if setup.cache_rows > rows:
            raise ConfigError(f"layer {setup.layer_id}: cache of {setup.cache_rows} rows, the table has {rows}")


def _apply_layer(tier: EngineTier, setup: LayerSetup, undo: ExitStack) -> None:
    group, index = tier.place(setup.layer_id)
    before, rows_before = group.core.sources(index), group.core.stats()[setup.layer_id]["cache_rows"]
    if setup.sources != before:
        undo.callback(_switch, group, index, before)
        _switch(group, index, setup.sources)
    if setup.cache_rows != rows_before:
        undo.callback(group.path.set_cache_rows, index, rows_before)
        group.path.set_cache_rows(index, setup.cache_rows)
    host_before = group.core.host_cache_bytes(index)
    if setup.host_cache_bytes != host_before:
        undo.callback(_set_host_cache, group, index, host_before)
        _set_host_cache(group, index, setup.host_cache_bytes)


def _set_host_cache(group: LookupGroup, index: int, byte_count: int) -> None:
    with group.path.between_steps() as core:
        core.set_host_cache(index, byte_count)


def _switch(group: LookupGroup, index: int, sources: Sequence[AnySource]) -> None:
    """Read from other replicas of the same rows; anything else is refused, with the old ones still in force."""
    with group.path.between_steps() as core:
        before, digest = core.sources(index), core.superblock(index).source_digest
        core.set_sources(index, sources)
        found = core.superblock(index)
        if found.source_digest != digest or found.row_count != group.tables[index].row_count:
            core.set_sources(index, before)
            raise ContractError(
                f"layer {group.layer_ids[index]}: the new source holds other rows than {before[0].label}",
                hint="at run time a table moves, it does not change; restart for another table",
            )  # fmt: skip


class Watcher:
    """Applies the control file when it changes, and looks whether a tier that failed is back. A thread of its own."""

    def __init__(self, tier: EngineTier) -> None:
        self._tier = tier
        self._seen: tuple[int, int, int] | None = None
        self._looked_s = 0.0

    def start(self) -> None:
        threading.Thread(target=self._run, name="slacktier-control", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(min(self._tier.settings.control_poll_s, _RECOVERY_S))
            self.look()

    def look(self) -> None:
        """One turn; nothing that goes wrong here reaches the engine."""
        try:
            self._follow_file()
            if self._tier.state is State.FAILED:
                self._tier.look_again()
        except SlackTierError as exc:
            _log.warning("slacktier: %s", exc)

    def _follow_file(self) -> None:
        path = self._tier.settings.control_file
        if path is None or self._tier.state is State.STARTING:
            return
        try:
            found = path.stat()
        except FileNotFoundError:
            return
        stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
        if stamp != self._seen:
            self._seen = stamp
            apply_binding(self._tier, load_binding(path))
