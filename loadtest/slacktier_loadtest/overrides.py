# SPDX-License-Identifier: Apache-2.0
"""What the command line changes in a scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slacktier.errors import ConfigError
from slacktier_loadtest.arms import DEFAULT_ARMS, parse_target, with_targets
from slacktier_loadtest.scenario import Scenario, TargetSpec, parse_scenario


@dataclass(frozen=True, slots=True)
class Overrides:
    """None and "" leave what the scenario says. is_single: one server or placement, whatever the scenario compares."""

    engine: str
    targets: tuple[str, ...]
    arms: str
    devices: str
    blocks: int | None
    baseline: str
    users: int | None
    rate: float | None
    sessions: int | None
    turns: int | None
    prompt_tokens: str
    output_tokens: int | None
    pause: tuple[float, float] | None
    slo_ttft_ms: float | None
    slo_tpot_ms: float | None
    slo_e2e_ms: float | None
    is_single: bool = False


def apply_overrides(scenario: Scenario, overrides: Overrides) -> tuple[Scenario, tuple[TargetSpec, ...]]:
    """The scenario as it is run, and its servers with their addresses; none where the emulated engine is the arms.

    raises  ConfigError for what does not go together
    """
    if overrides.engine not in ("", "emulated"):
        raise ConfigError(f"--engine {overrides.engine}: expected emulated", hint="--target names a running server")
    if overrides.engine and overrides.targets:
        raise ConfigError("--engine and --target: expected one of them")
    given = tuple(parse_target(text) for text in overrides.targets)
    changed = scenario.model_dump()
    _change_load(changed, overrides)
    _change_prompts(changed, overrides)
    for part, field, value in (
        ("workload", "sessions", overrides.sessions), ("workload", "turns_max", overrides.turns),
        ("workload", "output_tokens", overrides.output_tokens), ("slo", "ttft_ms", overrides.slo_ttft_ms),
        ("slo", "tpot_ms", overrides.slo_tpot_ms), ("slo", "e2e_ms", overrides.slo_e2e_ms),
        ("emulated", "devices", overrides.devices or None),
    ):  # fmt: skip
        if value is not None:
            changed[part][field] = value
    changed |= {"blocks": overrides.blocks or scenario.blocks, "pause_s": overrides.pause or scenario.pause_s}
    if given or not overrides.engine:
        return _with_servers(changed, scenario, given, overrides)
    return _emulated(changed, scenario, overrides), ()


def _change_load(changed: dict[str, Any], overrides: Overrides) -> None:
    if overrides.users is not None and overrides.rate is not None:
        raise ConfigError("--users and --rate: expected one of them (closed or open loop)")
    if overrides.users is not None or overrides.rate is not None:
        changed["load"] = {"users": overrides.users, "rate_per_s": overrides.rate}


def _change_prompts(changed: dict[str, Any], overrides: Overrides) -> None:
    if not overrides.prompt_tokens:
        return
    if changed["prefill"] is None:
        raise ConfigError("--prompt-tokens: the scenario has no prompts of fixed lengths", hint="--scenario prefill")
    try:
        lengths = tuple(int(text) for text in overrides.prompt_tokens.split(","))
    except ValueError as exc:
        raise ConfigError(f"--prompt-tokens {overrides.prompt_tokens!r}: expected lengths such as 4096,16384") from exc
    if min(lengths) < 1:
        raise ConfigError(f"--prompt-tokens {overrides.prompt_tokens!r}: expected lengths of at least 1")
    changed["prefill"]["prompt_tokens"] = lengths


def _with_servers(
    changed: dict[str, Any], scenario: Scenario, given: tuple[TargetSpec, ...], overrides: Overrides
) -> tuple[Scenario, tuple[TargetSpec, ...]]:
    if overrides.arms:
        raise ConfigError("--arms: placements of the emulated engine", hint="--engine emulated starts it")
    targets = given if overrides.is_single else with_targets(scenario, given)
    if not targets:
        raise ConfigError(
            "nothing to send to", hint="--engine emulated starts servers of ours, --target NAME=URL names running ones"
        )
    changed |= {"arms": (), "targets": (), "baseline": overrides.baseline or _kept(scenario, targets)}
    return parse_scenario(changed, "with the options given"), targets


def _kept(scenario: Scenario, targets: tuple[TargetSpec, ...]) -> str:
    return scenario.baseline if scenario.baseline in {target.name for target in targets} else ""


def _emulated(changed: dict[str, Any], scenario: Scenario, overrides: Overrides) -> Scenario:
    named = tuple(name.strip() for name in overrides.arms.split(",") if name.strip())
    if scenario.targets and not scenario.arms and not named:
        raise ConfigError(
            f"scenario {scenario.title!r}: compares servers that the emulated engine cannot stand in for",
            hint=" ".join(f"--target {target.name}=URL" for target in scenario.targets),
        )
    arms = named or scenario.arms or DEFAULT_ARMS
    kept = scenario.baseline if scenario.baseline in arms else ""
    changed |= {"arms": arms, "targets": (), "baseline": overrides.baseline or kept}
    return parse_scenario(changed, "with the options given")


def parse_percent(text: str) -> float | None:
    """`1.4%` or `1.4`; "" is None."""
    if not text:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError as exc:
        raise ConfigError(f"--max-tpot-overhead {text!r}: expected a percentage such as 1.4%") from exc
    if not -100 <= value <= 10_000:
        raise ConfigError(f"--max-tpot-overhead {text!r}: expected -100 to 10000 %")
    return value


def parse_range(text: str) -> tuple[float, float] | None:
    """`1-6` or `2` in seconds; "" is None."""
    if not text:
        return None
    low, dash, high = text.partition("-")
    try:
        return float(low), float(high if dash else low)
    except ValueError as exc:
        raise ConfigError(f"--pause {text!r}: expected seconds such as 1-6 or 2") from exc
