# SPDX-License-Identifier: Apache-2.0
"""The engine's own process: the web server's interpreter lock never touches a step's timing.

It ends when the server says so or when the server's end of the socket closes, a SIGKILL of the server included.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys

from slacktier.errors import ConfigError, SlackTierError
from slacktier_emulated.channel import FrameKind, json_frame
from slacktier_emulated.clock import MonotonicClock
from slacktier_emulated.engine import Engine, LayerState
from slacktier_emulated.engine_loop import EngineLoop
from slacktier_emulated.layers import LayerPlan, Source
from slacktier_emulated.link import Link
from slacktier_emulated.prefix_cache import PrefixCache
from slacktier_emulated.recording import LookupRecorder
from slacktier_emulated.scheduler import Scheduler
from slacktier_emulated.settings import EngineSettings
from slacktier_emulated.tables import layer_table, remote_spec
from slacktier_native.core import LayerSetup, LookupCore, SourceSpec
from slacktier_native.sources import AnySource
from slacktier_rowids.models import Hasher, load_hasher


def main(sock: socket.socket, settings: EngineSettings) -> None:
    """Entry point of the spawned process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches the whole group; the server decides what follows
    link = Link(sock)
    clock = MonotonicClock()
    try:
        engine = open_engine(settings, clock)
    except SlackTierError as exc:
        kind = "config" if isinstance(exc, ConfigError) else "fault"
        link.send(json_frame(FrameKind.FATAL, {"kind": kind, "message": str(exc), "hint": exc.hint}))
        sys.exit(1)
    link.send(json_frame(FrameKind.READY, {"pid": os.getpid(), **engine.status()}))
    gc.collect()
    gc.freeze()  # what is here now stays; a full collection in the middle of a step costs milliseconds
    try:
        EngineLoop(engine, link, clock).run()
    finally:
        is_saved = _save(engine.recorder)
        engine.core.close()
    if not is_saved:
        sys.exit(1)


def _save(recorder: LookupRecorder | None) -> bool:
    """Write the recording if there is one; False, and one line on stderr, if it could not be written."""
    try:
        if recorder is not None:
            recorder.save()
    except SlackTierError as exc:
        print(f"slacktier: {exc}", file=sys.stderr, flush=True)
        return False
    return True


def open_engine(settings: EngineSettings, clock: MonotonicClock) -> Engine:
    """Open regions, hasher and core, and prove the whole path with one lookup; raises what keeps it from serving."""
    hasher = load_hasher(settings.model_config)
    states = layer_states(settings, hasher)
    recorder = None
    if settings.record_path is not None:
        layer_ids = [state.plan.layer_id for state in states]
        recorder = LookupRecorder(
            settings.record_path, settings.record_limit, layer_ids, rank=settings.rank, tp=settings.tp
        )
    core = LookupCore(
        [layer_setup(plan) for plan in settings.layers], rank=settings.rank, tp=settings.tp,
        lookups_max=settings.profile.prefill.chunk_tokens * hasher.constants.columns,
        io_threads=settings.io_threads, queue_depth=settings.queue_depth, backend=settings.backend,
        timeout_s=settings.lookup_timeout_s,
    )  # fmt: skip
    scheduler = Scheduler(
        running_max=settings.running_max, chunk_tokens=settings.profile.prefill.chunk_tokens,
        ngram_size=hasher.ngram_size, cache=PrefixCache(settings.prefix_cache_tokens),
    )  # fmt: skip
    engine = Engine(
        settings, core, hasher, states, scheduler=scheduler, clock=clock, make_spec=source_spec, recorder=recorder
    )
    engine.warm_up()
    return engine


def layer_states(settings: EngineSettings, hasher: Hasher) -> list[LayerState]:
    """Every layer's region checked against the model; raises ConfigError or ContractError."""
    layout = hasher.layout
    states = []
    for plan in settings.layers:
        index = layout.layer_ids.index(plan.layer_id)
        table, identity = layer_table(plan, row_count=layout.row_counts[index], check_seed=settings.check_seed)
        states.append(LayerState(plan, table, identity, index))
    return states


def layer_setup(plan: LayerPlan) -> LayerSetup:
    return LayerSetup(
        layer_id=plan.layer_id,
        sources=tuple(source_spec(source, plan.layer_id) for source in plan.sources),
        cache_rows=plan.cache_rows,
        host_cache_bytes=plan.host_cache_bytes,
        cache_policy=plan.cache_policy,
    )


def source_spec(source: Source, layer_id: int) -> AnySource:
    if source.token_file is not None:
        return remote_spec(source, layer_id)
    return SourceSpec(
        tier=source.tier, paths=source.paths, device=source.device, delay=source.delay, page_cache=source.page_cache
    )
