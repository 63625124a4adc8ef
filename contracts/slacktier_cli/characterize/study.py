# SPDX-License-Identifier: Apache-2.0
"""One characterization: every layer x every number of sessions x every policy and size, and the reuse figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.characterize import reuse
from slacktier_cli.characterize.corpus import Corpus
from slacktier_cli.characterize.lookups import LayerHash, Lookups, look_up
from slacktier_cli.characterize.policies import (
    DYNAMIC,
    Curve,
    Load,
    Policy,
    curve_of,
    load_of,
    never_evicted,
    simulate,
    simulation_count,
)
from slacktier_cli.characterize.progress import Reporter, Stopwatch
from slacktier_cli.characterize.results import LayerStudy, LoadStudy, Lossy
from slacktier_cli.characterize.sampling import Sampling
from slacktier_cli.characterize.schedule import Schedule, interleave, one_by_one
from slacktier_native.cache_sim import CLASSES, PHASES, Phase
from slacktier_rowids.models import Hasher
from slacktier_rowids.seen_set import SeenSet

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Options:
    """What to simulate.

    layers      layer ids; empty: all
    sessions    numbers of sessions at a time
    rows        cache rows of a layer, all ranks together, rising
    rate        of sampling; 1 looks at every row
    idle_steps  mean pause before a turn that follows an answer
    seed        of shuffles, idle gaps, the split into halves and the page sample
    """

    layers: tuple[int, ...]
    sessions: tuple[int, ...]
    rows: tuple[int, ...]
    policies: tuple[Policy, ...]
    rate: Fraction
    idle_steps: float
    seed: int
    threads: int


@dataclass(frozen=True)
class _Schedules:
    """One number of sessions; judged are the sessions that the seen-set does not know."""

    measured: Schedule
    held_out: Schedule
    judged: Schedule


@dataclass(frozen=True)
class Study:
    """Runs a characterization; seen, if given, takes the place of the fit sessions' rows as the seen-set."""

    corpus: Corpus
    hasher: Hasher
    options: Options
    reporter: Reporter
    watch: Stopwatch
    seen: SeenSet | None = None

    def run(self) -> list[LayerStudy]:
        """Layer by layer, so that memory holds one layer's lookups at a time; raises ConfigError before any work."""
        options = self.options
        hashes = [self._layer_hash(layer) for layer in options.layers or self.hasher.layout.layer_ids]
        for layer in hashes:
            self._check(layer)
        for sessions in options.sessions:
            if not 0 < sessions <= len(self.corpus.measured):
                raise ConfigError(f"{sessions} sessions at a time, the trace has {len(self.corpus.measured)}")
        with self.watch.phase("schedule"):
            loads = [self._schedules(sessions) for sessions in options.sessions]
        return [self._layer(layer, loads) for layer in hashes]

    def _check(self, layer: LayerHash) -> None:
        for rows in self.options.rows:
            layer.sampling.scaled(rows)
        if self.seen:
            self.seen.layer(layer.layer_id, layer.row_count)

    def _schedules(self, sessions: int) -> _Schedules:
        corpus = self.corpus
        measured = self._schedule(corpus.measured, sessions)
        held_out = measured
        if corpus.held_out is not corpus.measured:
            held_out = self._schedule(corpus.held_out, min(sessions, len(corpus.held_out)))
        # A seen-set from a file knows none of the measured sessions; one of the fit can only be judged by the others.
        return _Schedules(measured, held_out, judged=measured if self.seen else held_out)

    def _layer_hash(self, layer_id: int) -> LayerHash:
        heads = self.hasher.constants.primes.shape[2]
        return LayerHash(self.hasher, layer_id, Sampling.at(self.options.rate, heads, self.options.seed))

    def _schedule(self, sessions: I64, slots: int) -> Schedule:
        options = self.options
        return interleave(self.corpus.trace, sessions, slots=slots, seed=options.seed, idle_steps=options.idle_steps)

    def _layer(self, layer: LayerHash, schedules: Sequence[_Schedules]) -> LayerStudy:
        trace, name = self.corpus.trace, f"layer {layer.layer_id}"
        with self.watch.phase("hash"), self.reporter.work(f"{name}: hash", len(trace.tokens)) as advance:
            lookups = look_up(trace, layer, advance)
        with self.watch.phase("hot set"):
            hot = reuse.HotSet.fit(lookups, trace, self.corpus.fit)
            seen = self.seen.layer(layer.layer_id, layer.row_count).contains(lookups.rows) if self.seen else hot.seen
        loads = tuple(self._load(lookups, load, hot, seen) for load in schedules)
        with self.watch.phase("reuse"):
            return self._with_reuse(lookups, loads, schedules[0], seen)

    def _load(
        self, lookups: Lookups, schedules: _Schedules, hot: reuse.HotSet, seen: npt.NDArray[np.bool_]
    ) -> LoadStudy:
        options, schedule = self.options, schedules.measured
        with self.watch.phase("reuse"):
            load = load_of(lookups, schedule)
            steps = reuse.decode_steps(lookups, schedule)
        with self.watch.phase("simulate"):
            dynamic = [policy for policy in options.policies if policy in DYNAMIC]
            curves = {curve.policy: curve for curve in self._simulate(lookups, schedule, load, dynamic)}
            cold = never_evicted(lookups.stream(schedule.order))[None]
        if Policy.STATIC in options.policies:
            with self.watch.phase("hot set"):
                curves[Policy.STATIC] = static_curve(lookups, schedules.held_out, hot, options.rows, load)
        with self.watch.phase("lossy"):
            lossy = self._lossy(lookups, schedules.judged, seen)
        return LoadStudy(
            load=load,
            curves=tuple(curves[policy] for policy in options.policies),
            unlimited=float(curve_of(Policy.LRU, (0,), cold, lookups, load).hit_rate[0]),
            steps=steps,
            static_sessions=schedules.held_out.slots,
            lossy=lossy,
        )

    def _simulate(
        self,
        lookups: Lookups,
        schedule: Schedule,
        load: Load,
        policies: Sequence[Policy],
        skip: npt.NDArray[np.uint8] | None = None,
    ) -> list[Curve]:
        rows, threads = self.options.rows, self.options.threads
        what = f"layer {lookups.layer_id}, {schedule.slots} sessions" + ("" if skip is None else ", skipping unseen")
        with self.reporter.work(what, simulation_count(policies, len(rows))) as advance:
            return simulate(
                lookups, schedule, load, policies, rows, threads=threads, skip=skip, advance=lambda: advance(1)
            )

    def _lossy(self, lookups: Lookups, schedule: Schedule, seen: npt.NDArray[np.bool_]) -> Lossy:
        dynamic = [policy for policy in self.options.policies if policy in DYNAMIC]
        policy = Policy.CLOCK if Policy.CLOCK in dynamic or not dynamic else dynamic[0]
        skip = (~seen).astype(np.uint8)
        full, less = load_of(lookups, schedule), load_of(lookups, schedule, skip)
        return Lossy(
            sessions=schedule.slots,
            tokens_per_step=full.tokens_per_step,
            share=reuse.unseen(lookups, schedule.order, seen).decode,
            uncached_pages=less.uncached_pages,
            uncached_pages_all=full.uncached_pages,
            skipping=self._simulate(lookups, schedule, less, [policy], skip)[0],
            reading_all=self._simulate(lookups, schedule, full, [policy])[0],
        )

    def _with_reuse(
        self, lookups: Lookups, loads: tuple[LoadStudy, ...], schedules: _Schedules, seen: npt.NDArray[np.bool_]
    ) -> LayerStudy:
        corpus, options = self.corpus, self.options
        shuffled = corpus.measured[np.random.default_rng(options.seed).permutation(len(corpus.measured))]
        in_sequence = one_by_one(corpus.trace, shuffled)
        interleaved = schedules.measured.order
        return LayerStudy(
            layer_id=lookups.layer_id,
            row_count=lookups.row_count,
            columns=lookups.columns,
            orders=lookups.orders,
            rows_per_page=lookups.rows_per_page,
            distinct_rows=len(lookups.rows) / lookups.rate,
            sampling=lookups.sampling,
            loads=loads,
            random_batches=reuse.random_batches(lookups, in_sequence, options.seed),
            windows=reuse.windows(lookups, in_sequence),
            prefill_windows=reuse.windows(lookups, interleaved[~lookups.decode[interleaved].astype(bool)]),
            coverage=reuse.coverage(lookups, corpus.trace, len(corpus.measured)),
            unseen=reuse.unseen(lookups, schedules.judged.order, seen),
        )


def static_curve(lookups: Lookups, schedule: Schedule, hot: reuse.HotSet, rows: Sequence[int], measured: Load) -> Curve:
    """A cache that holds the rows that the fit used most, and nothing else, ever.

    The hit rate is the share of decode lookups among those rows. Pages are the distinct other rows of a step, brought
    to the measured sessions' tokens per step: fewer held-out sessions may fill fewer slots.
    """
    load = load_of(lookups, schedule)
    scale = measured.tokens_per_step / max(load.tokens_per_step, 1)
    stream = lookups.stream(schedule.order)
    uses = [stream.counts(phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    misses = np.zeros((len(rows), PHASES, CLASSES), np.uint64)
    pages = np.zeros(len(rows))
    for at, size in enumerate(rows):
        outside = hot.outside(lookups.sampling.scaled(size))
        misses[at] = [np.bincount(lookups.class_of, weights=used * outside, minlength=CLASSES) for used in uses]
        pages[at] = load_of(lookups, schedule, 1 - outside).uncached_pages * scale
    curve = curve_of(Policy.STATIC, tuple(rows), misses, lookups, load)
    return replace(curve, pages_per_step=np.minimum(pages, measured.uncached_pages))
