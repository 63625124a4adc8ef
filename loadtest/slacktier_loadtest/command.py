# SPDX-License-Identifier: Apache-2.0
"""`slacktier loadtest`: what a table placement, or another server, costs a client."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from slacktier.errors import ConfigError, SlackTierError
from slacktier_cli.interruption import interrupted_by_sigterm
from slacktier_loadtest.faults import Limits
from slacktier_loadtest.handle import GeneratorOptions, check_locust, worker_command
from slacktier_loadtest.overrides import Overrides, apply_overrides, parse_percent, parse_range

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Replay sessions against servers and compare them.")

API_KEY_VARIABLE: Final = "SLACKTIER_API_KEY"

ScenarioName = Annotated[
    str, typer.Option("--scenario", help="A name (`slacktier loadtest scenarios`) or a YAML file.")
]
Engine = Annotated[
    str, typer.Option(help="`emulated`: start servers for the scenario's placements. Not with --target.")
]
Targets = Annotated[list[str] | None, typer.Option("--target", help="NAME=URL of a running server; repeat it.")]
Arms = Annotated[str, typer.Option(help="Placements of the emulated engine, comma-separated.")]
Devices = Annotated[str, typer.Option(help="real, or paper: disks with the paper's read times.")]
Trace = Annotated[Path | None, typer.Option(help="Sessions: token ids (.npz) or conversations (.jsonl).")]
Users = Annotated[int | None, typer.Option(min=1, help="Closed loop: users at once.")]
Rate = Annotated[float | None, typer.Option(min=0.001, help="Open loop: sessions per second.")]
Sessions = Annotated[int | None, typer.Option(min=1, help="Sessions of a block.")]
Turns = Annotated[int | None, typer.Option(min=1, help="Turns of a session at most.")]
PromptTokens = Annotated[str, typer.Option(help="Lengths of a prefill scenario's prompts, such as 4096,16384.")]
OutputTokens = Annotated[int | None, typer.Option(min=1, help="An answer is cut to so many tokens.")]
Pause = Annotated[str, typer.Option(help="Seconds before each further turn, as tools take them: 1-6 or 2.")]
Out = Annotated[Path, typer.Option(help="Directory of the report, logs and emulated tables.")]
Seed = Annotated[int, typer.Option(min=0, help="Fixes sessions, lengths, order, pauses and the order of blocks.")]
Api = Annotated[str, typer.Option(help="completions (token ids) or chat (messages).")]
Model = Annotated[str, typer.Option(help="Model name; default: the first that the server lists.")]
Timeout = Annotated[float, typer.Option(min=1, help="A server silent for so long has failed the request, seconds.")]
IgnoreEos = Annotated[
    bool, typer.Option(help="Ask for answers of the full length; servers of OpenAI's own API refuse it.")
]
EqualAnswers = Annotated[
    bool | None, typer.Option(help="Each answer must be the same in all arms; default: on the emulated engine.")
]
MaxLag = Annotated[float, typer.Option("--max-lag-ms", min=0, help="p99 of the generator's lag that is allowed.")]
MaxCpu = Annotated[float, typer.Option(min=0, help="Share of a core that a generator process may use.")]
Workers = Annotated[int, typer.Option(min=0, help="Locust workers; 0: one process sends everything.")]
Remote = Annotated[bool, typer.Option("--remote-workers", help="Wait for workers that are started elsewhere.")]
Bind = Annotated[str, typer.Option(help="HOST:PORT where workers find the master.")]
SloTtft = Annotated[float | None, typer.Option("--slo-ttft-ms", min=0.001, help="Goodput: limit of TTFT.")]
SloTpot = Annotated[float | None, typer.Option("--slo-tpot-ms", min=0.001, help="Goodput: limit of TPOT.")]
SloE2e = Annotated[float | None, typer.Option("--slo-e2e-ms", min=0.001, help="Goodput: limit of the whole answer.")]
Json = Annotated[bool, typer.Option("--json", help="Print the report's JSON and nothing else.")]


@app.command("compare")
def compare(
    scenario: ScenarioName = "agent", engine: Engine = "", target: Targets = None, arms: Arms = "",
    devices: Devices = "",
    blocks: Annotated[int | None, typer.Option(min=1, help="Blocks per arm, in shuffled rounds.")] = None,
    baseline: Annotated[str, typer.Option(help="Arm that the others are compared with; default: the first.")] = "",
    max_tpot_overhead: Annotated[
        str, typer.Option(help="Exit with 1 if an arm's mean TPOT exceeds the baseline's by more, such as 1.4%.")
    ] = "",
    trace: Trace = None, users: Users = None, rate: Rate = None, sessions: Sessions = None, turns: Turns = None,
    prompt_tokens: PromptTokens = "", output_tokens: OutputTokens = None, pause: Pause = "",
    out: Out = Path("build/loadtest"), seed: Seed = 1,
    api: Api = "completions", model: Model = "", timeout_s: Timeout = 120.0, ignore_eos: IgnoreEos = True,
    equal_answers: EqualAnswers = None, slo_ttft_ms: SloTtft = None, slo_tpot_ms: SloTpot = None,
    slo_e2e_ms: SloE2e = None, max_lag_ms: MaxLag = 5.0, max_cpu: MaxCpu = 0.7, workers: Workers = 0,
    remote_workers: Remote = False, bind: Bind = "127.0.0.1:5557", as_json: Json = False,
) -> None:  # fmt: skip
    """Replay the same sessions against several placements or servers, in shuffled blocks, and compare TPOT and TTFT.

    Every block sends the same requests: history, new turn, recorded lengths. Figures are per request, then mean and
    percentiles; min and max are over blocks; the interval is a bootstrap over rounds and sessions. Writes report.json
    and report.html to --out.

    Exit code 0 if all is well; 1 if a request failed, blocks completed different requests, answers were wrong, the
    generator was the bottleneck, or TPOT exceeds --max-tpot-overhead; 2 for bad input. An API key is taken from
    SLACKTIER_API_KEY.

    Examples:
      slacktier loadtest compare --engine emulated
      slacktier loadtest compare --scenario chat --engine emulated --devices paper --max-tpot-overhead 1.4%
      slacktier loadtest compare --target stock=http://a:30000 --target tiered=http://b:30000 --trace agent.npz
      slacktier loadtest compare --scenario prefill --engine emulated --json
    """
    overrides = Overrides(
        engine=engine, targets=tuple(target or ()), arms=arms, devices=devices, blocks=blocks, baseline=baseline,
        users=users, rate=rate, sessions=sessions, turns=turns, prompt_tokens=prompt_tokens,
        output_tokens=output_tokens, pause=parse_range(pause), slo_ttft_ms=slo_ttft_ms, slo_tpot_ms=slo_tpot_ms,
        slo_e2e_ms=slo_e2e_ms,
    )  # fmt: skip
    limits = (max_lag_ms, max_cpu, parse_percent(max_tpot_overhead), equal_answers)
    _run(
        scenario, overrides, limits, trace=trace, out=out, seed=seed, api=api, model=model, timeout_s=timeout_s,
        ignore_eos=ignore_eos, generators=_generators(workers, remote_workers, bind), as_json=as_json,
    )  # fmt: skip


@app.command("run")
def run_one(
    scenario: ScenarioName = "agent", engine: Engine = "",
    target: Annotated[str, typer.Option(help="URL of a running server.")] = "",
    arm: Annotated[str, typer.Option(help="Placement of the emulated engine.")] = "dram",
    devices: Devices = "", trace: Trace = None, users: Users = None, rate: Rate = None, sessions: Sessions = None,
    turns: Turns = None, prompt_tokens: PromptTokens = "", output_tokens: OutputTokens = None, pause: Pause = "",
    out: Out = Path("build/loadtest"), seed: Seed = 1, api: Api = "completions", model: Model = "",
    timeout_s: Timeout = 120.0, ignore_eos: IgnoreEos = True, slo_ttft_ms: SloTtft = None,
    slo_tpot_ms: SloTpot = None, slo_e2e_ms: SloE2e = None, max_lag_ms: MaxLag = 5.0, max_cpu: MaxCpu = 0.7,
    workers: Workers = 0, remote_workers: Remote = False, bind: Bind = "127.0.0.1:5557", as_json: Json = False,
) -> None:  # fmt: skip
    """Replay sessions once against one server or placement.

    The same requests, figures, checks and exit codes as `compare`, with nothing to compare with.

    Examples:
      slacktier loadtest run --target http://127.0.0.1:30000 --users 64
      slacktier loadtest run --engine emulated --arm nvme --scenario idle-gaps
      slacktier loadtest run --target http://127.0.0.1:8000 --rate 2 --slo-ttft-ms 500 --slo-tpot-ms 50 --json
    """
    overrides = Overrides(
        engine=engine or ("" if target else "emulated"), targets=(target,) if target else (),
        arms="" if target else arm, devices=devices, blocks=1, baseline="", users=users, rate=rate, sessions=sessions,
        turns=turns, prompt_tokens=prompt_tokens, output_tokens=output_tokens, pause=parse_range(pause),
        slo_ttft_ms=slo_ttft_ms, slo_tpot_ms=slo_tpot_ms, slo_e2e_ms=slo_e2e_ms, is_single=True,
    )  # fmt: skip
    _run(
        scenario, overrides, (max_lag_ms, max_cpu, None, None), trace=trace, out=out, seed=seed, api=api, model=model,
        timeout_s=timeout_s, ignore_eos=ignore_eos, generators=_generators(workers, remote_workers, bind),
        as_json=as_json,
    )  # fmt: skip


@app.command("worker")
def worker(
    master: Annotated[str, typer.Option(help="HOST:PORT of the run, its --bind.")] = "127.0.0.1:5557",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the Locust command as JSON instead of running it.")
    ] = False,
) -> None:
    """Send requests for a run that was started elsewhere with --workers N --remote-workers.

    Becomes a Locust worker and stays until the run ends. Sessions come from the master; nothing else is needed here.

    Examples:
      slacktier loadtest worker --master 10.0.0.7:5557
      slacktier loadtest compare --workers 2 --remote-workers --bind 0.0.0.0:5557 --target stock=http://a:30000
    """
    check_locust()
    command = worker_command(_address("--master", master))
    if as_json:
        print(json.dumps({"command": command}))
        return
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - Locust's own command line, in place of this process


@app.command("scenarios")
def scenarios(as_json: Json = False) -> None:
    """List the scenarios that ship, with what each compares.

    Examples:
      slacktier loadtest scenarios
      slacktier loadtest scenarios --json
    """
    from slacktier_loadtest.scenario import load_scenario, scenario_names

    loaded = {name: load_scenario(name) for name in scenario_names()}
    if as_json:
        print(json.dumps({"scenarios": {name: each.model_dump(mode="json") for name, each in loaded.items()}}))
        return
    for name, each in loaded.items():
        arms = ", ".join(each.arms) or ", ".join(f"--target {t.name}=URL" for t in each.targets) or "any --target"
        print(f"{name:<18} {each.title}\n{'':<18} arms: {arms}")


def _run(
    name: str, overrides: Overrides, limits: tuple[float, float, float | None, bool | None], *, as_json: bool,
    generators: GeneratorOptions, api: str, **rest: Any,
) -> None:  # fmt: skip
    try:
        from slacktier_loadtest.compare import RunOptions, run
        from slacktier_loadtest.document import document
        from slacktier_loadtest.page import render_page
        from slacktier_loadtest.scenario import load_scenario
        from slacktier_loadtest.table import print_document
    except ImportError as exc:
        raise ConfigError(f"{exc.name} is not installed", hint="pip install 'slacktier[loadtest,emulated]'") from exc
    if api not in ("completions", "chat"):
        raise ConfigError(f"--api {api}: expected completions or chat")
    check_locust()
    scenario, targets = apply_overrides(load_scenario(name), overrides)
    lag_ms, cpu, overhead_pct, equal_answers = limits
    options = RunOptions(
        scenario=scenario, targets=targets, is_chat=api == "chat", headers=_headers(), generators=generators,
        limits=Limits(
            lag_ms, cpu, overhead_pct, equal_answers=not targets if equal_answers is None else equal_answers,
            equal_rounds=not targets, equal_lengths=rest["ignore_eos"],
        ),
        **rest,
    )  # fmt: skip
    with interrupted_by_sigterm():
        outcome = run(options, Console(stderr=True))
    if not outcome.blocks:
        raise SlackTierError(outcome.broken or "no block was run")
    report = document(options, outcome)
    text = json.dumps(report, allow_nan=False)
    (options.out / "report.json").write_text(text + "\n", encoding="utf-8")
    (options.out / "report.html").write_text(render_page(report), encoding="utf-8")
    if as_json:
        print(text)
    else:
        console = Console()
        print_document(report, console)
        console.print(f"Report: {options.out / 'report.html'} and {options.out / 'report.json'}", highlight=False)
    if not report["ok"]:
        raise typer.Exit(1)


def _headers() -> dict[str, str]:
    key = os.environ.get(API_KEY_VARIABLE, "").strip()
    if any(ord(character) < 33 or ord(character) > 126 for character in key):
        raise ConfigError(f"{API_KEY_VARIABLE}: expected visible ASCII characters only")
    return {"Authorization": f"Bearer {key}"} if key else {}


def _generators(workers: int, is_remote: bool, bind: str) -> GeneratorOptions:
    if is_remote and not workers:
        raise ConfigError("--remote-workers: say how many with --workers")
    return GeneratorOptions(workers, not is_remote, _address("--bind", bind))


def _address(option: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{option} {text!r}: expected HOST:PORT")
    return host, int(port)
