# SPDX-License-Identifier: Apache-2.0
"""Takes sources and cache shares from tierd: at the start, whenever they change, and reports what came of it.

Each rank follows for itself; the first one reports. Whatever happens to tierd, what is in force stays in force.
"""

from __future__ import annotations

import copy
import logging
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from slacktier.api import Access, LayerFigures, Report
from slacktier.errors import ContractError, SlackTierError
from slacktier_binding.client import TierdClient
from slacktier_binding.sources import layer_setups
from slacktier_binding.watcher import AccessWatcher
from slacktier_engine.counters import DecodeCounts
from slacktier_engine.settings import Tierd
from slacktier_native.core import LayerSetup

if TYPE_CHECKING:
    from slacktier_engine.runtime import EngineTier

_log = logging.getLogger("slacktier")


class Follower:
    """One per rank. Keys lie in a directory of this process and user alone."""

    def __init__(self, tier: EngineTier, settings: Tierd) -> None:
        self._tier, self._settings = tier, settings
        self._client = TierdClient(settings.address())
        self._watcher = AccessWatcher(self._client, settings.needs, self._apply)
        self._keys = tempfile.TemporaryDirectory(prefix="slacktier-keys-")
        self._access: Access | None = None
        self._reported: dict[int, DecodeCounts] = {}
        self._failed_before = 0
        self._reported_s = time.monotonic()

    def first(self) -> dict[int, LayerSetup]:
        """Wait for a binding: layer -> what to open; raises TierUnavailableError when none comes in time."""
        self._access = self._watcher.first(
            self._settings.wait_s, lambda why: _log.info("slacktier: waiting for a binding: %s", why)
        )
        return {setup.layer_id: setup for setup in self._setups(self._access)}

    def check_digests(self) -> None:
        """Raises ContractError unless each layer's rows are those that tierd has staged."""
        for layer in self._access.layers if self._access else ():
            group, index = self._tier.place(layer.layer_id)
            found = group.core.superblock(index).source_digest.hex()
            wanted = {replica.digest for replica in layer.replicas}
            if found not in wanted:
                raise ContractError(
                    f"layer {layer.layer_id}: {group.core.sources(index)[0].label} has digest {found}, tierd says "
                    f"{', '.join(sorted(wanted))}", hint="the region was staged anew; tierd has to look at it again",
                )  # fmt: skip

    def start(self) -> None:
        """Follow changes, and report if this is the first rank."""
        self._watcher.start()
        if self._tier.rank == 0:
            threading.Thread(target=self._report_for_ever, name="slacktier-report", daemon=True).start()

    def close(self) -> None:
        """Stop following; the keys go."""
        self._watcher.stop()
        self._keys.cleanup()

    def _setups(self, access: Access) -> tuple[LayerSetup, ...]:
        return layer_setups(access, Path(self._keys.name))

    def _apply(self, access: Access) -> None:
        from slacktier_engine.control import apply_setups

        apply_setups(self._tier, self._setups(access))
        self._access = access
        _log.info("slacktier: access version %d is in force", access.version)

    def _report_for_ever(self) -> None:
        while True:
            time.sleep(self._settings.report_s)
            try:
                self._client.report(self.report())
            except SlackTierError as exc:
                _log.debug("slacktier: not reported: %s", exc)

    def report(self) -> Report:
        """What happened since the last one."""
        tier, now_s = self._tier, time.monotonic()
        layers, steps = [], 0
        for group in tier.groups:
            for index, layer_id in enumerate(group.layer_ids):
                counted = copy.copy(tier.counts.layers[layer_id].decode)
                grown = counted.since(self._reported.get(layer_id, DecodeCounts()))
                self._reported[layer_id] = counted
                steps = max(steps, grown.steps)
                layers.append(
                    LayerFigures(
                        layer_id=layer_id, tier=group.core.sources(index)[0].tier, lookups=grown.lookups,
                        hits=grown.hits, repeats=grown.repeats, misses=grown.misses, pages=grown.pages,
                        retries=grown.retries, read_us_mean=grown.read_us / max(1, grown.steps),
                        stall_us_mean=grown.stall_us / max(1, grown.steps),
                    )
                )  # fmt: skip
        failed = sum(tier.counts.failures.values())
        seconds, self._reported_s = now_s - self._reported_s, now_s
        failed_steps, self._failed_before = failed - self._failed_before, failed
        why = self._watcher.message or ("" if tier.is_ready else tier.reason)
        return Report(
            in_force=self._watcher.in_force, ready=tier.is_ready, seconds=seconds, steps=steps,
            failed_steps=failed_steps, message=why[:4096], layers=tuple(layers),
        )  # fmt: skip
