# SPDX-License-Identifier: Apache-2.0
"""Scenarios: what to send, how fast, to which arms. YAML files; those that ship lie in `scenarios/`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slacktier.errors import ConfigError

SHIPPED_DIRECTORY: Final = Path(__file__).with_name("scenarios")

Milliseconds = Annotated[float, Field(gt=0, le=3_600_000, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class ScenarioModel(BaseModel):
    """Base of a scenario's parts: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkloadSpec(ScenarioModel):
    """Which sessions are replayed, and how much of each; lengths in tokens.

    trace   file name in the directory of traces, or "" for the built-in text
    source  only the sessions of this source of the trace
    """

    trace: str = ""
    source: str = ""
    sessions: int = Field(default=32, ge=1, le=100_000)
    turns_max: int = Field(default=8, ge=1, le=10_000)
    history_tokens: int = Field(default=256, ge=2, le=1_000_000)
    turn_tokens: int = Field(default=96, ge=2, le=1_000_000)
    output_tokens: int = Field(default=64, ge=1, le=100_000)


class Load(ScenarioModel):
    """Closed loop: so many users, each with one request at a time. Open loop: sessions arrive at a rate (Poisson)."""

    users: int | None = Field(default=None, ge=1, le=4096)
    rate_per_s: float | None = Field(default=None, gt=0, le=10_000, allow_inf_nan=False)

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Load:
        if (self.users is None) == (self.rate_per_s is None):
            raise ValueError("name either users (closed loop) or rate_per_s (open loop)")
        return self


class PrefillPhases(ScenarioModel):
    """Prompts of fixed lengths, so many at a time; every pair is a phase of its own in each block."""

    prompt_tokens: tuple[int, ...] = Field(min_length=1)
    together: tuple[int, ...] = (1, 8)
    repeats: int = Field(default=3, ge=1, le=1000)


class Slo(ScenarioModel):
    """A request is good if it is within all that are given."""

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None
    e2e_ms: Milliseconds | None = None


class EmulatedSpec(ScenarioModel):
    """The servers that a run starts itself.

    devices    paper: emulated disks with the paper's read times stand in for this machine's disk
    instances  servers on the same tables and devices; users are dealt over them
    sessions   step times and windows of this batch, whatever the real one is; None: of the real one
    cache_rows row cache of arms that end in -split, both layers together
    page_cache what the page-cache arm may hold of the tables
    """

    size: str = "512M"
    tp: int = Field(default=4, ge=1, le=64)
    profile: str = "v41-h200"
    devices: Literal["real", "paper"] = "real"
    instances: int = Field(default=1, ge=1, le=8)
    sessions: int | None = Field(default=None, ge=1, le=1_000_000)
    cache_rows: int = Field(default=50_000, ge=2, le=1 << 31)
    page_cache: str = "64M"
    prefix_cache_tokens: int = Field(default=4_000_000, ge=0, le=1 << 28)


class Switch(ScenarioModel):
    """One step that puts a placement in force before a block: an HTTP call or a file.

    url   absolute, or a path on the arm's own server; token_file holds a bearer token
    is_binding  url is a binding of tierd's: wait until its instance reads by it
    file  written as JSON, in one rename; a plugin that watches it takes it up
    """

    url: str = ""
    method: Literal["POST", "PUT", "PATCH", "GET"] = "POST"
    body: dict[str, Any] | None = None
    token_file: Path | None = None
    is_binding: bool = False
    file: Path | None = None
    content: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Switch:
        if bool(self.url) == (self.file is not None):
            raise ValueError("name either url or file")
        if self.file is not None and self.content is None:
            raise ValueError("file needs its content")
        if self.is_binding and "/v1/bindings/" not in self.url:
            raise ValueError("is_binding: expected the url http://HEAD:PORT/v1/bindings/INSTANCE")
        return self


class TargetSpec(ScenarioModel):
    """A server that runs already, as an arm.

    urls     where; users are dealt over several. Empty: --target NAME=URL says it
    switch   what puts the arm in force; two arms may have one server
    settle_s wait between the switch and the block
    predicted_slowdown_ms  of a step, as `slacktier plan` prints it
    flags    what the server is to be started with, for people to read
    """

    name: Name
    urls: tuple[str, ...] = ()
    switch: tuple[Switch, ...] = ()
    settle_s: Seconds = 0.0
    predicted_slowdown_ms: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    flags: str = ""


class Scenario(ScenarioModel):
    """A whole comparison.

    arms     placements of the emulated engine; empty where `targets` are the arms
    pause_s  range of the pause before each turn after a session's first: what tools take
    baseline the arm that the others are compared with; "": the first
    """

    title: str
    about: str = ""
    workload: WorkloadSpec = WorkloadSpec()
    load: Load = Load(users=16)
    pause_s: tuple[Seconds, Seconds] = (0.0, 0.0)
    prefill: PrefillPhases | None = None
    blocks: int = Field(default=3, ge=1, le=1000)
    arms: tuple[str, ...] = ()
    targets: tuple[TargetSpec, ...] = ()
    emulated: EmulatedSpec = EmulatedSpec()
    baseline: str = ""
    slo: Slo = Slo()

    @model_validator(mode="after")
    def _parts_agree(self) -> Scenario:
        if self.pause_s[0] > self.pause_s[1]:
            raise ValueError("pause_s: expected the shorter pause first")
        names = [*self.arms, *(target.name for target in self.targets)]
        if len(set(names)) != len(names):
            raise ValueError("an arm is named twice")
        if self.prefill is not None and self.load.users is None:
            raise ValueError("prefill: says itself how many prompts there are at a time; load takes no rate then")
        return self

    @property
    def pause_mean_s(self) -> float:
        return sum(self.pause_s) / 2


def scenario_names() -> list[str]:
    """Those that ship."""
    return sorted(path.stem for path in SHIPPED_DIRECTORY.glob("*.yaml"))


def load_scenario(name_or_path: str) -> Scenario:
    """A shipped scenario by name, or one from a YAML file; raises ConfigError naming the first thing that is wrong."""
    shipped = scenario_names()
    path = SHIPPED_DIRECTORY / f"{name_or_path}.yaml" if name_or_path in shipped else Path(name_or_path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        hint = f"shipped scenarios: {', '.join(shipped)}"
        raise ConfigError(f"scenario {name_or_path}: {exc.strerror or exc}", hint=hint) from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"scenario {path}: not YAML: {' '.join(str(exc).split())}") from exc
    return parse_scenario(content, str(path))


def parse_scenario(content: Any, where: str) -> Scenario:
    """Checked; raises ConfigError."""
    try:
        return Scenario.model_validate(content)
    except ValidationError as exc:
        first = exc.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"scenario {where}: {at}: {message}" if at else f"scenario {where}: {message}") from exc
