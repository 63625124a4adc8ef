# SPDX-License-Identifier: Apache-2.0
"""The tier as one scheduler process has it: attached to the model that was built, then serving its steps.

Fails closed: until a warm-up lookup has gone through the same path as a step's, the process is not ready, and no
lookup is answered from anywhere else. What fails later either ends the requests of that step or the process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import torch

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier.page import Superblock
from slacktier_engine import supported
from slacktier_engine.checker import Checker, RowMismatchError
from slacktier_engine.checkpoint_rows import CheckpointRows
from slacktier_engine.counters import Counts
from slacktier_engine.cpu_step import CpuStepPath
from slacktier_engine.follower import Follower
from slacktier_engine.lookups import LookupGroup, SeenRows
from slacktier_engine.opening import check_region, checkpoint_directory, look_up_uncached, spread_ids
from slacktier_engine.settings import Lossy, OnReadFailure, Settings, WeightUpdates
from slacktier_engine.step_path import Dequantize, Phase, StepPath, TableShape, out_rows
from slacktier_engine.weight_updates import Offers, compare_table
from slacktier_native.core import LayerSetup, LookupCore
from slacktier_rowids.seen_set import SeenSet

_NONE: Final = "none"
_log = logging.getLogger("slacktier")


class State(StrEnum):
    """Of the process, as its readiness endpoint tells it."""

    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"


class EngineTier:
    """One per scheduler process.

    local_ranks  ranks on this machine
    striped  each rank owns the rows whose id modulo tp is its rank, and results are reduced as stock reduces its
             shards; else each rank reads all rows of its own tokens, as stock's shared layout does
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state, self.reason = State.STARTING, "the model is being loaded"
        self.rank, self.tp, self.striped = 0, 1, False
        self.local_ranks = 1
        self.model = ""
        self.groups: list[LookupGroup] = []
        self.counts = Counts()
        self.setups = {table.layer: table.setup() for table in settings.tables}
        self.lossy = settings.lossy
        self.stock_engram: Any = None  # the engine's EngramEmbedding, for its arithmetic
        self.follower = Follower(self, settings.tierd) if settings.tierd is not None else None
        self.changes = threading.Lock()  # held by whoever changes sources, sizes or the seen-set
        self._places: dict[int, tuple[LookupGroup, int]] = {}
        self._offers: dict[int, Offers] = {}
        self._ends_requests = False

    @staticmethod
    def parallel() -> Any:
        from sglang.srt.runtime_context import get_parallel

        return get_parallel()

    # -- start ---------------------------------------------------------------------------------------------------

    def prepare(self, runner: Any) -> None:
        """Before the model is loaded: whatever would make the wait useless is refused here."""
        supported.check_flags(runner.server_args)
        if self.follower is not None:
            self.setups = self.follower.first()
        parallel = self.parallel()
        self.rank, self.tp = parallel.tp_rank, parallel.tp_size
        self.local_ranks = max(1, self.tp // getattr(runner.server_args, "nnodes", 1))
        self.striped = self.tp > 1 and parallel.attn_dp_size == 1
        self.model = str(runner.server_args.model_path)
        self._ends_requests = (
            self.settings.on_read_failure is OnReadFailure.END_REQUESTS
            and self.tp == 1
            and supported.can_end_requests(runner.server_args)
        )

    def attach(self, runner: Any, families: list[Family]) -> None:
        """After the model is loaded: open the sources, look up some rows as a step would, and be ready."""
        checkpoint, device = self._checkpoint(runner), torch.device(runner.device)
        for family in families:
            self.adopt([self._group(tables, family, checkpoint, device) for tables in family.groups(runner.model)])
        self._check_layers()
        if self.lossy is not None:
            self.set_lossy(self.lossy)
        for group in self.groups:
            self._warm_up(group)
        if self.follower is not None:
            self.follower.check_digests()
            self.follower.start()
        self.state, self.reason = State.READY, "rows were looked up through the tier"
        _log.info("slacktier: rank %d of %d is ready: layers %s", self.rank, self.tp, sorted(self._places))

    def adopt(self, groups: list[LookupGroup]) -> None:
        """Serve these layers from now on."""
        self.groups += groups
        for group in groups:
            self._places.update({layer_id: (group, index) for index, layer_id in enumerate(group.layer_ids)})

    def _check_layers(self) -> None:
        found = {layer_id for group in self.groups for layer_id in group.layer_ids}
        configured = set(self.setups)
        if not found:
            raise ConfigError(
                f"{self.model}: the model has no Engram or PLE layer, so there is nothing to look up",
                hint="unset SLACKTIER_CONFIG for this model",
            )
        if extra := sorted(configured - found):
            raise ConfigError(f"tables: the model has no lookup layer {extra[0]}; it has {sorted(found)}")

    def _group(
        self, tables: list[TableShape], family: Family, checkpoint: CheckpointRows | None, device: torch.device
    ) -> LookupGroup:
        missing = [table.layer_id for table in tables if table.layer_id not in self.setups]
        if missing:
            raise ConfigError(
                f"tables: layer {missing[0]} of the model is not configured", hint="each lookup layer needs its sources"
            )
        if family.always_reduces and self.tp > 1 and not self.striped:
            raise ConfigError(
                "--attn-dp-size: not with SlackTier and PLE layers: the engine adds up what its ranks looked up",
                hint="start the server without DP attention",
            )
        owner = (self.rank, self.tp) if self.striped else (0, 1)
        setups = [self.setups[table.layer_id] for table in tables]
        core = self._open(setups, *owner)
        for index, table in enumerate(tables):
            check_region(table, core.superblock(index), core.sources(index)[0].label)
        checker = Checker(
            checkpoint, self.counts, rate=self.settings.check.rate,
            on_mismatch=self.settings.check.on_mismatch, rank=owner[0], tp=owner[1],
        )  # fmt: skip
        path = self._path(core, tables, family, setups, device)
        return LookupGroup(path, core, tables, self.counts, checker)

    def _open(self, setups: list[LayerSetup], rank: int, tp: int) -> LookupCore:
        reads = self.settings.reads
        return LookupCore(
            setups, rank=rank, tp=tp, lookups_max=self.settings.lookups_max,
            io_threads=reads.io_threads, queue_depth=reads.queue_depth, backend=reads.backend,
            timeout_s=reads.timeout_s,
        )  # fmt: skip

    def _path(
        self, core: LookupCore, tables: list[TableShape], family: Family, setups: list[LayerSetup], device: torch.device
    ) -> StepPath:
        if device.type == "cpu":
            arithmetic = [family.dequantizer(core.superblock(index)) for index in range(len(tables))]
            return CpuStepPath(core, arithmetic, self.counts)
        from slacktier_engine.cuda_step import CudaStepPath

        cache_rows = [setup.cache_rows for setup in setups]
        return CudaStepPath(core, tables, cache_rows, device, self.settings.reads.timeout_s)

    def _checkpoint(self, runner: Any) -> CheckpointRows | None:
        named = self.settings.check.checkpoint
        if named == _NONE:
            return None
        return CheckpointRows(checkpoint_directory(named or runner.model_config.model_path), self.stock_engram)

    def _warm_up(self, group: LookupGroup) -> None:
        """Look up rows spread over each table, and compare them with the checkpoint's."""
        row_ids = torch.stack([spread_ids(table, group.core) for table in group.tables], dim=1)
        if isinstance(group.path, CpuStepPath):
            device = torch.device("cpu")
        else:
            device = torch.device("cuda", torch.cuda.current_device())
        row_ids = row_ids.to(device)
        group.issue(row_ids, None, Phase.PREFILL)
        for index, table in enumerate(group.tables):
            out = out_rows(row_ids, index, table.dim)
            group.join(index, row_ids[:, index], out)
            group.checker.compare(table, row_ids[:, index].reshape(-1), out)
        group.path.check()

    # -- steps ---------------------------------------------------------------------------------------------------

    def issue(
        self, row_ids: torch.Tensor, live: torch.Tensor | None, phase: Phase, layer_id: int | None = None
    ) -> None:
        """Start a step's reads; layer_id names the group where there are several."""
        group = self.groups[0] if layer_id is None and self.groups else self.place(layer_id)[0]
        try:
            group.issue(row_ids, live, phase)
        except SlackTierError as exc:
            self._failed(group.layer_ids[0], group, exc)

    def join(self, layer_id: int, indices: torch.Tensor, out: torch.Tensor) -> None:
        """Rows of a layer into out [T * C, dim]; zeros and step_error where the read failed and requests can end."""
        group, index = self.place(layer_id)
        if group.error is not None:
            out.zero_()
            return
        try:
            group.join(index, indices, out)
        except RowMismatchError as exc:
            self.state, self.reason = State.FAILED, str(exc)
            raise
        except SlackTierError as exc:
            self._failed(layer_id, group, exc)
            out.zero_()

    def place(self, layer_id: int | None) -> tuple[LookupGroup, int]:
        found = self._places.get(-1 if layer_id is None else layer_id)
        if found is None:
            raise ContractError(f"layer {layer_id}: a lookup before the tier was attached to the model")
        return found

    def _failed(self, layer_id: int, group: LookupGroup, error: SlackTierError) -> None:
        self.counts.failed(layer_id, error)
        self.state, self.reason = State.FAILED, str(error)
        _log.error("slacktier: rows of layer %d could not be read: %s", layer_id, error)
        if not self._ends_requests:
            raise error
        group.error = error

    @property
    def captures_steps(self) -> bool:
        """Steps may be replayed from a graph, where no Python runs."""
        return any(not isinstance(group.path, CpuStepPath) for group in self.groups)

    def arm(self) -> None:
        """Before a graph is replayed."""
        for group in self.groups:
            group.path.arm()

    def captured_error(self) -> SlackTierError | None:
        """What a captured step failed with; raises it where requests cannot end by themselves."""
        for group in self.groups:
            try:
                group.path.check()
            except SlackTierError as exc:
                self._failed(group.layer_ids[0], group, exc)
                group.error = None
                return exc
        return None

    def take_error(self) -> SlackTierError | None:
        """What the step just run failed with, once."""
        for group in self.groups:
            if (error := group.error) is not None:
                group.error = None
                return error
        return None

    # -- changes at run time -------------------------------------------------------------------------------------

    def offer(self, layer_id: int, part: str | int, tensor: torch.Tensor) -> None:
        """A load hands a tensor of a table over. The first load's are not looked at: they are never read."""
        if layer_id in self._places and self.settings.weight_updates is WeightUpdates.COMPARE:
            self._offers.setdefault(layer_id, Offers()).add(part, tensor)

    def weights_changed(self, layer_id: int) -> None:
        """A load is complete: nothing cached is kept; raises ContractError if it brought other rows."""
        if layer_id not in self._places:
            return
        group, index = self._places[layer_id]
        with group.path.between_steps() as core:
            core.drop_cache(index)
            self.counts.cache_drops += 1
            if (offers := self._offers.pop(layer_id, None)) is not None:
                compare_table(core, index, offers, rank=group.checker.rank, tp=group.checker.tp)

    def set_lossy(self, lossy: Lossy | None) -> None:
        """Skip rows outside a seen-set in these layers, or none; raises ConfigError if the set is of another table."""
        seen: dict[int, SeenRows] = {}
        if lossy is not None:
            loaded = SeenSet.load(lossy.seen_set)
            for layer_id in lossy.layers:
                group, index = self.place(layer_id)
                bitmap = loaded.layer(layer_id, group.tables[index].row_count).bitmap
                seen[layer_id] = SeenRows(torch.from_numpy(bitmap.copy()))
        for group in self.groups:
            with group.path.between_steps():
                group.seen = {layer_id: seen[layer_id] for layer_id in group.layer_ids if layer_id in seen}
        self.lossy = lossy

    def look_again(self) -> None:
        """Ready again once rows that no cache holds come back: without a step, since none comes while not ready."""
        for group in self.groups:
            with group.path.between_steps() as core:
                look_up_uncached(core, group.tables)
        self.state, self.reason = State.READY, "rows were looked up through the tier again"
        _log.info("slacktier: rank %d is ready again", self.rank)

    @property
    def is_ready(self) -> bool:
        return self.state is State.READY

    def close(self) -> None:
        if self.follower is not None:
            self.follower.close()
        for group in self.groups:
            group.close()
        self.groups, self._places = [], {}


class Family:
    """A kind of lookup layer: how to find its tables in a model, and the engine's arithmetic on gathered rows.

    always_reduces  the engine adds up what its ranks looked up, whoever owns the rows
    """

    def __init__(
        self, find: Callable[[Any], list[list[TableShape]]], dequantizer: Callable[[Superblock], Dequantize],
        *, always_reduces: bool = False,
    ) -> None:  # fmt: skip
        self._find = find
        self.dequantizer = dequantizer
        self.always_reduces = always_reduces

    def groups(self, model: Any) -> list[list[TableShape]]:
        """The tables of each group that one step path serves; [] where the model has none of this kind."""
        return self._find(model)
