# SPDX-License-Identifier: Apache-2.0
"""A whole run: workload, servers, generator, arms in shuffled blocks, figures. One function per part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.demo.arms import Arm
from slacktier_cli.demo.tables import StagedTable, TableStore
from slacktier_cli.progress import byte_progress
from slacktier_cli.sizes import parse_size
from slacktier_loadtest.arms import placements
from slacktier_loadtest.faults import Limits
from slacktier_loadtest.figures import BlockResult, PhaseResult
from slacktier_loadtest.forecast import predicted_slowdowns
from slacktier_loadtest.handle import Generator, GeneratorOptions, running_generator
from slacktier_loadtest.live import Live, live
from slacktier_loadtest.running_target import RunningTarget, model_of
from slacktier_loadtest.scenario import Scenario, TargetSpec
from slacktier_loadtest.script import BlockScript, RequestShape, marker_ids, message_json
from slacktier_loadtest.servers import EmulatedServers, Server
from slacktier_loadtest.workload import Phase, Prepared, prepare

_GIVE_UP_SHARE: Final = 0.5  # of a block's requests: a server that fails so many is not asked again


@dataclass(frozen=True, slots=True)
class RunOptions:
    """A run, read once from the command line.

    out       directory of the report, the logs and the emulated tables
    targets   servers that run already, with their addresses; empty: the scenario's placements on the emulated engine
    headers   for every request to them
    """

    out: Path
    scenario: Scenario
    targets: tuple[TargetSpec, ...]
    trace: Path | None
    seed: int
    is_chat: bool
    model: str
    headers: Mapping[str, str]
    timeout_s: float
    ignore_eos: bool
    limits: Limits
    generators: GeneratorOptions

    @property
    def is_emulated(self) -> bool:
        return not self.targets

    @property
    def arm_names(self) -> tuple[str, ...]:
        return self.scenario.arms if self.is_emulated else tuple(target.name for target in self.targets)

    @property
    def baseline(self) -> str:
        return self.scenario.baseline or self.arm_names[0]


@dataclass(slots=True)
class Outcome:
    """What a run gave, also one that broke off: then `broken` says how."""

    workload: str
    expected: int
    blocks: list[BlockResult] = field(default_factory=list)
    predicted: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: str = ""


def check_options(options: RunOptions) -> tuple[Arm, ...]:
    """The emulated placements of the run; raises ConfigError for what can be found wrong before anything is written."""
    if not options.arm_names:
        raise ConfigError("no arm to run", hint="--arms names placements of the emulated engine, --target servers")
    if options.baseline not in options.arm_names:
        raise ConfigError(f"baseline {options.baseline!r}: not among the arms {', '.join(options.arm_names)}")
    if not options.is_emulated:
        for target in options.targets:
            RunningTarget(target, options.headers)
        return ()
    parse_size(options.scenario.emulated.page_cache)
    return placements(options.scenario.arms, is_paper=options.scenario.emulated.devices == "paper")


def run(options: RunOptions, console: Console) -> Outcome:
    """Everything between the options and the report; raises ConfigError before anything is written for bad input."""
    arms = check_options(options)
    store = None
    if options.is_emulated:
        size = parse_size(options.scenario.emulated.size)
        store = TableStore(options.out / "tables", table_bytes=size, seed=options.seed)
    with console.status("reading the workload"):
        prepared = prepare(options.scenario, options.trace, seed=options.seed, is_chat=options.is_chat)
    console.print(f"workload: {prepared.description}; {prepared.request_count:,} requests per block", highlight=False)
    _make_directory(options.out)
    tables = _tables(store) if store is not None else ()
    outcome = Outcome(prepared.description, prepared.request_count)
    with ExitStack() as stack:
        servers = _servers(options, arms, store, tables, stack, console)
        generator = stack.enter_context(running_generator(options.generators, options.out / "generator.log"))
        with console.status("starting the load generator"):
            generator.wait_ready()
        _run_blocks(options, prepared, servers, generator, outcome, console)
    if outcome.blocks and options.is_emulated:
        outcome.predicted, note = predicted_slowdowns(arms, outcome.blocks, tables, options.scenario.emulated)
        outcome.notes += [note] if note else []
    for target in options.targets:
        if target.predicted_slowdown_ms is not None:
            outcome.predicted[target.name] = target.predicted_slowdown_ms
    return outcome


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--out {out}: {exc.strerror or exc}") from exc


def _tables(store: TableStore) -> tuple[StagedTable, ...]:
    store.directory.mkdir(parents=True, exist_ok=True)
    store.check_space()
    with byte_progress() as progress:
        return store.prepare(progress)


def _servers(
    options: RunOptions, arms: Sequence[Arm], store: TableStore | None, tables: Sequence[StagedTable],
    stack: ExitStack, console: Console,
) -> Mapping[str, Server]:  # fmt: skip
    if store is None:
        return {target.name: RunningTarget(target, options.headers) for target in options.targets}
    scenario = options.scenario
    users = max(scenario.prefill.together) if scenario.prefill else scenario.load.users or scenario.workload.sessions
    with console.status("starting servers"):
        return EmulatedServers(scenario.emulated, store, tables, options.out, users).start(arms, stack)


def shuffled(names: Sequence[str], rounds: int, *, seed: int) -> list[tuple[int, str]]:
    """(round, arm): in each round every arm once, in an order of its own that the seed fixes."""
    rng = np.random.default_rng((seed, len("blocks")))
    return [(round_index, names[at]) for round_index in range(rounds) for at in rng.permutation(len(names))]


def _run_blocks(
    options: RunOptions, prepared: Prepared, servers: Mapping[str, Server], generator: Generator, outcome: Outcome,
    console: Console,
) -> None:  # fmt: skip
    """All blocks, or those until something broke."""
    order = shuffled(options.arm_names, options.scenario.blocks, seed=options.seed)
    with live(console, len(order) * prepared.request_count) as shown:
        for number, (round_index, arm) in enumerate(order):
            shown.begin(f"block {number + 1}/{len(order)} {arm}")
            try:
                block = _block(options, prepared, servers[arm], generator, (number, round_index, arm), shown)
            except SlackTierError as exc:
                outcome.broken = f"block {number + 1} of {len(order)} (arm {arm}): {_why(servers[arm], exc)}"
                return
            outcome.blocks.append(block)
            if len(block.failed) > _GIVE_UP_SHARE * len(block.finished):
                why = _why(servers[arm], SlackTierError(f"{len(block.failed)} requests of one block failed"))
                outcome.broken = f"stopped after block {number + 1} of {len(order)} (arm {arm}): {why}"
                return


def _why(server: Server, exc: SlackTierError) -> str:
    """If a server of ours is gone, that is the better thing to say."""
    try:
        server.check()
    except SlackTierError as gone:
        return str(gone)
    return str(exc)


def _block(
    options: RunOptions, prepared: Prepared, server: Server, generator: Generator, which: tuple[int, int, str],
    shown: Live,
) -> BlockResult:  # fmt: skip
    """One arm's turn, from an idle server."""
    number, round_index, arm = which
    server.enter()
    shape = _shape(options, server.urls[0], round_index if _has_equal_prompts(options, arm) else number)
    phases = []
    for phase in prepared.phases:
        script = _script(options, phase, server.urls, shape)
        phases.append(PhaseResult(phase.name, generator.run(script, shown.told)))
    return BlockResult(round_index, arm, tuple(phases), server.reports())


def _has_equal_prompts(options: RunOptions, arm: str) -> bool:
    """Prompts are those of the round's other arms: where answers are compared, or no other arm has these addresses."""
    if options.targets and options.limits.equal_answers:
        return True
    urls = {target.name: set(target.urls) for target in options.targets}
    return arm in urls and not any(urls[arm] & urls[other] for other in urls if other != arm)


def _shape(options: RunOptions, url: str, marker: int) -> RequestShape:
    """Requests of one block; marker makes its prompts differ from those that a prefix cache has seen."""
    model = options.model or model_of(url, options.headers)
    body: dict[str, Any] = {"model": model, "temperature": 0}
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.is_chat:
        return RequestShape("messages", message_json("system", f"Run {marker}."), body)
    return RequestShape("prompt", marker_ids(marker), body, replays=options.is_emulated)


def _script(options: RunOptions, phase: Phase, urls: tuple[str, ...], shape: RequestShape) -> BlockScript:
    return BlockScript(phase.users, urls, shape, options.headers, options.timeout_s)
