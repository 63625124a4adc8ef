# SPDX-License-Identifier: Apache-2.0
"""`slacktier serve`: an OpenAI-compatible server whose engine is emulated: real look-ups, compute by waiting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from slacktier.cache_policy import CachePolicy
from slacktier.errors import ConfigError
from slacktier_cli.serve_instance import InstanceOptions, bind
from slacktier_emulated.layers import GRAMMAR, LayerPlan, plan_layers
from slacktier_emulated.moving_split import MovingSplit
from slacktier_emulated.profile import Profile, load_profile
from slacktier_emulated.recording import check_record_path
from slacktier_emulated.server import serve
from slacktier_emulated.settings import EMULATED_SUFFIX, EngineSettings, ServerSettings
from slacktier_emulated.tables import check_plans
from slacktier_emulated.text import FILLER, V4Codec
from slacktier_rowids.engram import EngramLayout
from slacktier_rowids.models import load_config, load_layout

_ENGINES = ("emulated",)


def command(
    engine: Annotated[str, typer.Option(help="Only `emulated` so far.")] = "emulated",
    layer: Annotated[list[str] | None, typer.Option(help=f"{GRAMMAR}; repeat it for replicas.")] = None,
    cache_rows: Annotated[list[str] | None, typer.Option(help="LAYER=ROWS of the row cache; default 0.")] = None,
    host_cache: Annotated[
        list[str] | None, typer.Option(help="LAYER=GIB of a second level behind the row cache; default 0.")
    ] = None,
    cache_policy: Annotated[
        CachePolicy, typer.Option(help="How the row cache chooses the row that goes; `characterize` compares them.")
    ] = CachePolicy.CLOCK,
    online_split: Annotated[
        bool, typer.Option("--online-split", help="Move cache rows to the layers that the steps wait for.")
    ] = False,
    profile: Annotated[str, typer.Option(help="Shipped profile, or a YAML file.")] = "v41-h200",
    tp: Annotated[int | None, typer.Option(min=1, max=64, help="Ranks; default: the profile's.")] = None,
    rank: Annotated[int, typer.Option(min=0, max=63, help="Rows with row_id % tp == rank are looked up.")] = 0,
    config: Annotated[str, typer.Option(help="Model config.json; a scaled table needs its own.")] = "v41",
    check_pattern: Annotated[
        int | None, typer.Option(min=0, help="Check rows against this pattern seed; default: the region's own.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    model_name: Annotated[str, typer.Option(help="Name for clients; -emulated is added to it.")] = "",
    context_length: Annotated[int, typer.Option(min=16, max=4_194_304, help="Prompt and answer, tokens.")] = 131_072,
    max_running: Annotated[int, typer.Option(min=1, max=4096, help="Sequences in prefill and decode.")] = 256,
    max_waiting: Annotated[int, typer.Option(min=0, max=100_000, help="Queue; above it requests get 503.")] = 512,
    prefix_cache_tokens: Annotated[
        int, typer.Option(min=0, max=1 << 28, help="Tokens of past sequences that need no prefill.")
    ] = 4_000_000,
    backend: Annotated[str, typer.Option(help="auto, uring or posix.")] = "auto",
    io_threads: Annotated[int, typer.Option(min=0, max=256, help="0: one with uring, 16 with posix.")] = 0,
    queue_depth: Annotated[int, typer.Option(min=1, max=4096, help="Pages in flight per thread.")] = 256,
    lookup_timeout_s: Annotated[float, typer.Option(min=0.1, help="A look-up fails after this long.")] = 60.0,
    token_file: Annotated[
        Path | None, typer.Option(help="Bearer token of the control calls; needed off loopback.")
    ] = None,
    record_lookups: Annotated[Path | None, typer.Option(help="Write all row ids to this .npz at the end.")] = None,
    record_limit: Annotated[int, typer.Option(min=1, help="Look-ups to record at most.")] = 50_000_000,
    body_limit_bytes: Annotated[int, typer.Option(min=1024, help="Larger requests get 413.")] = 16 << 20,
    drain_s: Annotated[float, typer.Option(min=0.0, help="Running streams go on this long after SIGTERM.")] = 10.0,
    tierd: Annotated[str, typer.Option(help="URL of tierd's head, which says where rows are; no --layer.")] = "",
    instance: Annotated[str, typer.Option(help="This instance's name, for --tierd.")] = "",
    tierd_token_file: Annotated[Path | None, typer.Option(help="This instance's token, for --tierd.")] = None,
    tierd_ca: Annotated[Path | None, typer.Option(help="CA file for an https --tierd.")] = None,
    table: Annotated[list[str] | None, typer.Option(help="LAYER=NAME of a table of tierd's; repeat it.")] = None,
    plan_sessions: Annotated[int, typer.Option(min=1, max=4096, help="Load to be placed for, with --tierd.")] = 64,
    misses: Annotated[
        list[str] | None, typer.Option(help="LAYER=ROWS:PAGES,...; pages per step with so many cache rows.")
    ] = None,
    row_cache: Annotated[int, typer.Option(min=0, help="Cache rows for tierd to split between layers.")] = 0,
    slo_pct: Annotated[float, typer.Option(min=0, help="Slowdown that is allowed, % of a step, with --tierd.")] = 1.0,
    node: Annotated[str, typer.Option(help="The node that this is, as tierd's Ray names it.")] = "",
    tierd_wait_s: Annotated[float, typer.Option(min=1, help="How long the start waits to be bound.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line when ready.")] = False,
) -> None:
    """Serve an OpenAI-compatible endpoint whose engine is emulated: look-ups are real, compute time is waited for.

    No model runs and answers are not a model's. Use it to see what a disk or a network would do to time per output
    token, on a machine without a GPU. Every row is checked; rows of a `make-checkpoint` table against its pattern too.

    Examples:
      slacktier serve --layer 1=nvme:/data/l1 --layer 14=nvme:/data/l14 --config /data/checkpoint/config.json
      slacktier serve --layer 1=dram:/data/l1 --layer 14=nvme:/data/l14 --cache-rows 1=500000 --tp 1
      slacktier serve --layer 1=nvme:/data/l1 --cache-rows 1=100000 --host-cache 1=2.5
      slacktier serve --layer 1=nvme:/a --layer 14=nvme:/b --cache-rows 1=1000 --cache-rows 14=9000 --online-split
      slacktier serve --layer 1=emulated@paper-rdma:/data/l1 --layer 14=nvme:/dev/nvme0n1,/dev/nvme1n1 --port 0 --json
      slacktier serve --tierd http://localhost:8700 --tierd-token-file token --instance a --table 1=t1 --table 14=t14
      curl localhost:8000/v1/completions -d '{"prompt": "def main():", "max_tokens": 64, "stream": true}'
      curl localhost:8000/slacktier/control -d '{"layers": [{"layer_id": 1, "tier": "dram", "cache_rows": 200000}]}'
    """
    if engine not in _ENGINES:
        raise ConfigError(f"--engine {engine}: expected emulated", hint="a real engine is served by its own command")
    chosen = load_profile(profile)
    ranks = tp if tp is not None else chosen.tp
    if rank >= ranks:
        raise ConfigError(f"--rank {rank}: expected below --tp {ranks}")
    model_config = load_config(config)
    bound = None
    if tierd:
        bound = bind(
            InstanceOptions(
                url=tierd, name=instance, token_file=tierd_token_file, ca_file=tierd_ca, tables=tuple(table or ()),
                sessions=plan_sessions, misses=tuple(misses or ()), cache_rows=row_cache, slo_pct=slo_pct, node=node,
                wait_s=tierd_wait_s, ranks=ranks,
            ),
            chosen, load_layout(model_config, name=config), is_free=not (layer or cache_rows or host_cache),
        )  # fmt: skip
    given = (layer or [], cache_rows or [], chosen.layer_ids, host_cache or [])
    plans = bound.plans if bound else plan_layers(*given)
    plans = tuple(replace(plan, cache_policy=cache_policy) for plan in plans)
    if online_split:
        MovingSplit({plan.layer_id: plan.cache_rows for plan in plans})
    _check_tables(plans, load_layout(model_config, name=config), check_pattern)
    if record_lookups is not None:
        check_record_path(record_lookups)
    codec = V4Codec()
    engine_settings = EngineSettings(
        layers=plans, profile=chosen, model_config=model_config, rank=rank, tp=ranks,
        filler=tuple(codec.encode(FILLER)), eos_id=codec.eos_id, special_first=codec.special_first,
        check_seed=check_pattern, running_max=max_running, prefix_cache_tokens=prefix_cache_tokens, backend=backend,
        io_threads=io_threads, queue_depth=queue_depth, lookup_timeout_s=lookup_timeout_s,
        online_split=online_split, record_path=record_lookups, record_limit=record_limit,
    )  # fmt: skip
    server_settings = ServerSettings(
        host=host, port=port, model_name=_served_name(model_name, chosen), waiting_max=max_waiting,
        context_length=context_length, body_bytes_max=body_limit_bytes, drain_s=drain_s, token=_token(token_file),
    )  # fmt: skip
    code = serve(engine_settings, server_settings, codec, as_json=as_json, bound=bound)
    if code:
        raise typer.Exit(code)


def _check_tables(plans: tuple[LayerPlan, ...], layout: object, check_seed: int | None) -> None:
    """Everything about the regions that can be told before a process starts."""
    if not isinstance(layout, EngramLayout):
        raise ConfigError("--config: the emulated engine serves V4.1 Engram tables; this model has Qwen PLE tables")
    check_plans(plans, dict(zip(layout.layer_ids, layout.row_counts, strict=True)), check_seed=check_seed)


def _served_name(name: str, profile: Profile) -> str:
    return f"{(name or profile.model).removesuffix(EMULATED_SUFFIX)}{EMULATED_SUFFIX}"


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--token-file {path}: {exc}") from exc
    if not token:
        raise ConfigError(f"--token-file {path}: is empty")
    return token
