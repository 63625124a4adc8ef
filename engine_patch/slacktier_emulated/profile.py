# SPDX-License-Identifier: Apache-2.0
"""Compute profiles: how long a step takes and when each layer needs its rows, by number of sessions.

A profile is a YAML file; those that ship with the package lie in `profiles/`. Nothing here knows a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slacktier.errors import ConfigError

SHIPPED_DIRECTORY: Final = Path(__file__).with_name("profiles")
# Extrapolated below the smallest measured batch, a step never falls under this share of that batch's step.
_STEP_SHARE_MIN: Final = 0.5

Milliseconds = Annotated[float, Field(gt=0, le=600_000, allow_inf_nan=False)]


class ProfileModel(BaseModel):
    """Base of the profile's parts: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Point(ProfileModel):
    """One measured batch size: the whole step and each lookup layer's window, from the step's start."""

    sessions: int = Field(ge=1, le=1_000_000)
    step_ms: Milliseconds
    windows_ms: dict[int, Milliseconds]

    @model_validator(mode="after")
    def _windows_fit_the_step(self) -> Point:
        if not self.windows_ms:
            raise ValueError("windows_ms names no layer")
        by_layer = [self.windows_ms[layer_id] for layer_id in sorted(self.windows_ms)]
        if by_layer != sorted(by_layer) or by_layer[-1] >= self.step_ms:
            raise ValueError("windows must grow with the layer and end before the step does")
        return self


class Prefill(ProfileModel):
    """Prefill: compute time per token, of a step at least, and the chunk that one step takes.

    source  where the times come from, or that they are assumed
    """

    chunk_tokens: int = Field(default=8192, ge=16, le=16_384)
    us_per_token: float = Field(gt=0, le=1_000_000, allow_inf_nan=False)
    step_ms_min: Milliseconds
    source: str


class Profile(ProfileModel):
    """One model on one machine, as one rank of `tp` sees it."""

    name: str = Field(min_length=1, max_length=64)
    model: str = Field(min_length=1, max_length=64)
    source: str
    layer_count: int = Field(ge=1, le=10_000)
    tp: int = Field(ge=1, le=64)
    points: tuple[Point, ...] = Field(min_length=1)
    prefill: Prefill

    @model_validator(mode="after")
    def _points_agree(self) -> Profile:
        sessions = [point.sessions for point in self.points]
        if sessions != sorted(set(sessions)):
            raise ValueError("points must be sorted by sessions, each once")
        layer_ids = set(self.layer_ids)
        if any(set(point.windows_ms) != layer_ids for point in self.points):
            raise ValueError("every point must name the same layers")
        if not all(0 <= layer_id < self.layer_count for layer_id in layer_ids):
            raise ValueError(f"layers {sorted(layer_ids)}: expected ids below layer_count {self.layer_count}")
        return self

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The lookup layers in order of use."""
        return tuple(sorted(self.points[0].windows_ms))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step costs: compute time, and each layer's window from the step's start, in order of use."""

    step_ms: float
    windows_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a control call puts in place of the profile's values; None leaves the profile's.

    sessions  the step times of this batch size, whatever the real one is: a small replay with a large batch's windows
    """

    sessions: int | None = None
    step_ms: float | None = None
    windows_ms: Mapping[int, float] | None = None
    prefill_us_per_token: float | None = None


class Schedule:
    """Step times of the chosen layers by batch size: a profile with the overrides in force."""

    def __init__(self, profile: Profile, layer_ids: Sequence[int], overrides: Overrides | None = None) -> None:
        self.profile = profile
        self.layer_ids = tuple(layer_ids)
        self.overrides = overrides or Overrides()
        self._decode: dict[int, StepTimes] = {}

    def decode(self, sessions: int) -> StepTimes:
        """One decode step of this many sequences."""
        key = self.overrides.sessions or max(1, sessions)
        if key not in self._decode:
            self._decode[key] = self._times(self.overrides.step_ms or _step_ms(self.profile.points, key), key)
        return self._decode[key]

    def prefill(self, tokens: int) -> StepTimes:
        """One prefill step of this many tokens; the windows keep their share of the step at the largest batch."""
        us_per_token = self.overrides.prefill_us_per_token or self.profile.prefill.us_per_token
        step_ms = max(tokens * us_per_token / 1000.0, self.profile.prefill.step_ms_min)
        return self._times(step_ms, self.profile.points[-1].sessions, fixed=False)

    def _times(self, step_ms: float, sessions: int, *, fixed: bool = True) -> StepTimes:
        windows = {
            layer_id: step_ms * _window_share(self.profile.points, layer_id, sessions) for layer_id in self.layer_ids
        }
        if fixed and self.overrides.windows_ms:
            windows |= {k: min(v, step_ms) for k, v in self.overrides.windows_ms.items() if k in windows}
        return StepTimes(step_ms, tuple(windows[layer_id] for layer_id in self.layer_ids))


def _step_ms(points: Sequence[Point], sessions: int) -> float:
    """Linear between the measured batches and beyond them, along the nearest two."""
    if len(points) == 1:
        return points[0].step_ms
    upper = next((i for i, point in enumerate(points) if point.sessions >= sessions), len(points) - 1)
    low, high = points[max(0, upper - 1)], points[max(1, upper)]
    slope = (high.step_ms - low.step_ms) / (high.sessions - low.sessions)
    return max(low.step_ms + slope * (sessions - low.sessions), _STEP_SHARE_MIN * points[0].step_ms)


def _window_share(points: Sequence[Point], layer_id: int, sessions: int) -> float:
    """The window as a share of the step: windows scale with the step time; between points the share is interpolated."""
    shares = [point.windows_ms[layer_id] / point.step_ms for point in points]
    if sessions <= points[0].sessions:
        return shares[0]
    for (low, low_share), (high, high_share) in zip(
        zip(points, shares, strict=True), zip(points[1:], shares[1:], strict=True), strict=False
    ):
        if sessions <= high.sessions:
            weight = (sessions - low.sessions) / (high.sessions - low.sessions)
            return low_share + (high_share - low_share) * weight
    return shares[-1]


def load_profile(name_or_path: str) -> Profile:
    """A shipped profile by name, or one from a YAML file; raises ConfigError naming the first thing that is wrong."""
    shipped = sorted(path.stem for path in SHIPPED_DIRECTORY.glob("*.yaml"))
    path = SHIPPED_DIRECTORY / f"{name_or_path}.yaml" if name_or_path in shipped else Path(name_or_path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"profile {name_or_path}: {exc.strerror or exc}", hint=f"shipped profiles: {', '.join(shipped)}"
        ) from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise ConfigError(f"profile {path}: not YAML: {' '.join(str(exc).split())}") from exc
    try:
        return Profile.model_validate(content)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(f"profile {path}: {where}: {first['msg']}") from exc
