# SPDX-License-Identifier: Apache-2.0
"""The engine between the scheduler and the core: hashes, runs steps, counts, and changes sources between steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from slacktier.errors import ConfigError, ContractError, SlackTierError
from slacktier_emulated.answers import Answer, PseudoAnswer, RecordedAnswer
from slacktier_emulated.cache_size import CacheWish, check_caches
from slacktier_emulated.channel import Submit
from slacktier_emulated.clock import Clock
from slacktier_emulated.control import ControlRequest
from slacktier_emulated.core_api import Core, Ids
from slacktier_emulated.layers import LayerPlan, Source, check_devices
from slacktier_emulated.moving_split import MovingSplit
from slacktier_emulated.profile import Overrides, Schedule, StepTimes
from slacktier_emulated.recording import LookupRecorder
from slacktier_emulated.report import Aggregates, EngineMetrics
from slacktier_emulated.scheduler import Batch, Phase, Scheduler, TokenSequence, decode_inputs, prefill_inputs
from slacktier_emulated.settings import EngineSettings
from slacktier_emulated.step import LayerTable, LookupFailedError, StepRecord, StepRunner
from slacktier_emulated.tables import TableIdentity, check_sources, host_wish, tier_label
from slacktier_rowids.ngram import NgramHasher


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step that is ready to begin: its batch, the row ids of each served layer, and what it must take."""

    batch: Batch
    row_ids: tuple[Ids, ...]
    times: StepTimes


@dataclass(slots=True)
class LayerState:
    """One served layer: where its rows come from now, and its place in the model's row ids."""

    plan: LayerPlan
    table: LayerTable
    identity: TableIdentity
    hash_index: int


SpecMaker = Callable[[Source, int], Any]

# A host that stalls for longer than this many steps is not hidden: the rest is lost, and the report says how much.
_OWED_STEPS_MAX: Final = 4


class Engine:
    """Steps, one after the other, on one thread.

    make_spec  turns a Source of a layer into what the core's set_sources takes
    """

    def __init__(
        self, settings: EngineSettings, core: Core, hasher: NgramHasher, layers: Sequence[LayerState], *,
        scheduler: Scheduler, clock: Clock, make_spec: SpecMaker, recorder: LookupRecorder | None = None,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.core = core
        self.layers = list(layers)
        self.scheduler = scheduler
        self.recorder = recorder
        self.is_ready = False
        self.last_error = ""
        self.step_count = 0
        self.call_faults = 0
        self._hasher = hasher
        self._clock = clock
        self._make_spec = make_spec
        self._filler = np.array(settings.filler, np.uint32)
        self._owed_ns = self._ended_ns = 0
        self._runner = StepRunner(
            core, [layer.table for layer in layers], rank=settings.rank, tp=settings.tp, clock=clock
        )
        self.schedule = Schedule(settings.profile, self.layer_ids)
        self.split = MovingSplit(self._cache_rows()) if settings.online_split else None
        self.aggregates = self._new_aggregates()
        self.metrics = EngineMetrics(len(layers))

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return tuple(layer.plan.layer_id for layer in self.layers)

    @property
    def tiers(self) -> tuple[str, ...]:
        return tuple(layer.table.tier for layer in self.layers)

    def _new_aggregates(self) -> Aggregates:
        return Aggregates(self.layer_ids, first_step=self.step_count, now_ns=self._clock.now_ns())

    def warm_up(self) -> None:
        """One lookup through the whole path, outside all counts; sets readiness."""
        window = self._hasher.window(self._filler[:1].astype(np.int64))
        rows = self._select(self._hasher.step(window[None]))
        try:
            self._runner.run(rows, StepTimes(0.0, (0.0,) * len(self.layers)))
        except LookupFailedError as exc:
            self.set_health(exc)
            raise
        self.set_health(None)

    def set_health(self, exc: SlackTierError | None) -> None:
        self.is_ready = exc is None
        self.last_error = "" if exc is None else str(exc)

    def submit(self, request: Submit) -> None:
        eos = None if request.ignore_eos else self.settings.eos_id
        answer: Answer
        if len(request.answer):
            answer = RecordedAnswer([int(token) for token in request.answer])
        else:
            answer = PseudoAnswer(
                request.prompt, self._filler, seed=request.seed, special_first=self.settings.special_first, eos=eos
            )
        self.scheduler.submit(TokenSequence(request.request_id, request.prompt, answer, request.max_tokens, eos))

    def prepare(self) -> Prepared | None:
        """The next step's batch and row ids; None if there is nothing to do."""
        batch = self.scheduler.next_batch()
        if batch is None:
            return None
        if batch.phase is Phase.PREFILL:
            tokens, offsets, history = prefill_inputs(batch, self._hasher.ngram_size)
            rows, times = self._hasher.packed(tokens, offsets, history=history), self.schedule.prefill(len(tokens))
        else:
            rows = self._hasher.step(decode_inputs(batch))
            times = self.schedule.decode(len(batch.sequences))
        return Prepared(batch, self._select(rows), times)

    def _select(self, rows: Ids) -> tuple[Ids, ...]:
        return tuple(rows[:, layer.hash_index].reshape(-1) for layer in self.layers)

    def begin(self, prepared: Prepared, on_begun: Callable[[], None]) -> StepRecord:
        """Run the step up to its last check; raises LookupFailedError. Its time is not over when this returns."""
        between_ns = self._clock.now_ns() - self._ended_ns if self._ended_ns else 0
        return self._runner.run(prepared.row_ids, prepared.times, owed_ns=self._owed_ns + between_ns, on_begun=on_begun)

    def finish(self, prepared: Prepared, record: StepRecord, *, paused_ns: int = 0) -> None:
        """Wait for the step's end and count it.

        paused_ns  time that went into control calls after the lookups; no part of the step
        """
        self._clock.sleep_until(record.end_ns + paused_ns)
        now_ns = self._clock.now_ns() - paused_ns
        owed_ns = max(0, now_ns - record.planned_end_ns)
        self._ended_ns = now_ns + paused_ns
        self._owed_ns = min(owed_ns, int(prepared.times.step_ms * 1e6) * _OWED_STEPS_MAX)
        batch, step_ns = prepared.batch, now_ns - record.begin_ns
        self.aggregates.add(
            batch.phase, record, sequences=len(batch.sequences), tokens=batch.token_count, step_ns=step_ns,
            overrun_ns=now_ns - record.end_ns, lost_ns=owed_ns - self._owed_ns,
        )  # fmt: skip
        self.metrics.add(batch.phase, record, step_ns, self.tiers)
        if self.recorder is not None:
            cache_rows = [layer.plan.cache_rows for layer in self.layers]
            self.recorder.add(self.step_count, batch.phase, prepared.row_ids, record, cache_rows)
        self.step_count += 1
        self._move_split(batch.phase, record)

    def _cache_rows(self) -> dict[int, int]:
        return {layer.plan.layer_id: layer.plan.cache_rows for layer in self.layers}

    def _move_split(self, phase: Phase, record: StepRecord) -> None:
        rows = self.split.observe(phase, record) if self.split is not None else None
        if rows is None:
            return
        # What shrinks goes first, so that the caches together never take more than they did.
        for layer in sorted(self.layers, key=lambda layer: rows[layer.plan.layer_id] - layer.plan.cache_rows):
            self._apply(layer, replace(layer.plan, cache_rows=rows[layer.plan.layer_id]))

    def fail(self, failure: LookupFailedError) -> None:
        """Count a step whose lookups failed; not ready until a later lookup works."""
        self.rest()
        self.aggregates.add_failure(failure)
        self.metrics.add_failure(failure, self.layer_ids)
        self.set_health(failure)

    def rest(self) -> None:
        """The next step follows on no other: nothing is owed to it."""
        self._owed_ns = self._ended_ns = 0

    def core_stats(self) -> list[dict[str, int]]:
        """The core's own totals since it was opened, in order of use."""
        totals = self.core.stats()
        return [totals[layer_id] for layer_id in self.layer_ids]

    def report(self, *, reset: bool) -> dict[str, Any]:
        content = self.aggregates.as_json(self.tiers, end_step=self.step_count, now_ns=self._clock.now_ns())
        content |= {"backend": self.core.backend, "profile": self.settings.profile.name}
        content |= {"rank": self.settings.rank, "tp": self.settings.tp}
        if reset:
            self.aggregates = self._new_aggregates()
        return content

    def status(self) -> dict[str, Any]:
        overrides = self.schedule.overrides
        return {
            "engine": "emulated",
            "ready": self.is_ready,
            "last_error": self.last_error,
            "profile": self.settings.profile.name,
            "profile_source": self.settings.profile.source,
            "profile_overrides": {
                "sessions": overrides.sessions,
                "step_ms": overrides.step_ms,
                "windows_ms": None if overrides.windows_ms is None else dict(overrides.windows_ms),
                "prefill_us_per_token": overrides.prefill_us_per_token,
            },
            "rank": self.settings.rank,
            "tp": self.settings.tp,
            "backend": self.core.backend,
            "backend_reason": self.core.backend_reason,
            "is_polled": self.core.is_polled,
            "layers": [self._layer_status(layer) for layer in self.layers],
            "requests": {"running": self.scheduler.running_count, "waiting": self.scheduler.waiting_count},
            "prefix_cache_tokens": self.scheduler.cache.tokens,
            "steps": self.step_count,
            "online_split": None if self.split is None else {"moves": self.split.moves},
            "call_faults": self.call_faults,
            "recording": self._recording_status(),
        }

    def _layer_status(self, layer: LayerState) -> dict[str, Any]:
        return {
            "layer_id": layer.plan.layer_id,
            "tier": layer.table.tier,
            "sources": [source.describe() for source in layer.plan.sources],
            "cache_rows": layer.plan.cache_rows,
            "host_cache_bytes": layer.plan.host_cache_bytes,
            "row_bytes": layer.table.row_bytes,
            "rows": layer.identity.row_count,
            "checked_against_pattern": layer.table.pattern_seed is not None,
        }

    def _recording_status(self) -> dict[str, Any] | None:
        if self.recorder is None:
            return None
        return {
            "path": str(self.recorder.path),
            "steps": self.recorder.step_count,
            "limit_reached": self.recorder.is_full,
        }

    def control(self, request: ControlRequest) -> dict[str, Any]:
        """Check the whole request, then apply it; on an error everything is as it was.

        raises  ConfigError for what is wrong in the request; ContractError or TierError where a source does not open
        """
        plans = {change.layer_id: self._changed_plan(change.layer_id, request) for change in request.layers}
        self._check_caches(plans)
        check_devices(plans.get(layer.plan.layer_id, layer.plan) for layer in self.layers)
        overrides = self.schedule.overrides if request.profile is None else request.profile.overrides()
        self._check_overrides(overrides)
        schedule = Schedule(self.settings.profile, self.layer_ids, overrides)
        split = self._changed_split(request, plans)
        with ExitStack() as undo:  # whatever goes wrong, steps go on from here: every layer is put back
            for layer in self.layers:
                if layer.plan.layer_id in plans:
                    undo.callback(self._apply, layer, layer.plan)
                    self._apply(layer, plans[layer.plan.layer_id])
            undo.pop_all()
        self.schedule, self.split = schedule, split
        return self.status()

    def _changed_split(self, request: ControlRequest, plans: Mapping[int, LayerPlan]) -> MovingSplit | None:
        """A new one where it is switched on or where sizes were set by hand: it starts from these."""
        wanted = self.split is not None if request.online_split is None else request.online_split
        rows = self._cache_rows() | {layer_id: plan.cache_rows for layer_id, plan in plans.items()}
        if not wanted:
            return None
        return self.split if self.split is not None and rows == self._cache_rows() else MovingSplit(rows)

    def _changed_plan(self, layer_id: int, request: ControlRequest) -> LayerPlan:
        layer = next((layer for layer in self.layers if layer.plan.layer_id == layer_id), None)
        if layer is None:
            raise ConfigError(f"layer {layer_id}: expected one of {', '.join(map(str, self.layer_ids))}")
        change = next(change for change in request.layers if change.layer_id == layer_id)
        plan = layer.plan
        sources = change.new_sources(plan.sources[0])
        if sources is not None:
            try:
                sb = check_sources(layer_id, sources, row_count=layer.identity.row_count)
            except ContractError as exc:  # nothing was changed: to the caller it is the wrong file
                raise ConfigError(f"layer {layer_id}: {exc}", hint=exc.hint) from exc
            if TableIdentity.of(sb) != layer.identity:
                raise ConfigError(
                    f"layer {layer_id}: {sources[0].where} holds another table than the one being served",
                    hint="start another server for it",
                )
            plan = replace(plan, sources=sources)
        if change.host_cache_gib is not None:
            plan = replace(plan, host_cache_bytes=int(change.host_cache_gib * (1 << 30)))
        return plan if change.cache_rows is None else replace(plan, cache_rows=change.cache_rows)

    def _check_caches(self, plans: Mapping[int, LayerPlan]) -> None:
        """Caches that grow must fit into what memory has left."""
        wishes = []
        for layer in self.layers:
            plan, row_bytes = plans.get(layer.plan.layer_id, layer.plan), layer.table.row_bytes
            if plan.cache_rows > layer.plan.cache_rows:
                wishes.append(CacheWish(plan.layer_id, plan.cache_rows, row_bytes, layer.identity.row_count))
            if plan.host_cache_bytes > layer.plan.host_cache_bytes:
                wishes.append(host_wish(plan, row_bytes))
        check_caches(wishes)

    def _check_overrides(self, overrides: Overrides) -> None:
        for layer_id in overrides.windows_ms or ():
            if layer_id not in self.layer_ids:
                raise ConfigError(
                    f"windows_ms: layer {layer_id}: expected one of {', '.join(map(str, self.layer_ids))}"
                )

    def _apply(self, layer: LayerState, plan: LayerPlan) -> None:
        index = self.layers.index(layer)
        if plan.sources != layer.plan.sources:
            self.core.set_sources(index, [self._make_spec(source, plan.layer_id) for source in plan.sources])
            layer.plan = replace(layer.plan, sources=plan.sources)
            layer.table.tier = tier_label(plan.sources)
        if plan.cache_rows != layer.plan.cache_rows:
            self.core.set_cache_rows(index, plan.cache_rows)
            layer.plan = replace(layer.plan, cache_rows=plan.cache_rows)
        if plan.host_cache_bytes != layer.plan.host_cache_bytes:
            self.core.set_host_cache(index, plan.host_cache_bytes)
            layer.plan = replace(layer.plan, host_cache_bytes=plan.host_cache_bytes)
