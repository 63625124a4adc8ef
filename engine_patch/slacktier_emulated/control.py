# SPDX-License-Identifier: Apache-2.0
"""What POST /slacktier/control may ask for. Parsing only; the engine applies it between two steps."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier_emulated.layers import CACHE_ROWS_MAX, HOST_CACHE_GIB_MAX, Source, make_remote_source, make_source
from slacktier_emulated.profile import Overrides


def _readable_path(text: str) -> str:
    """A path that open() takes and does not block on; what is not there is told when the region is opened."""
    if not text or "\0" in text:
        raise ValueError(f"path {text!r}: expected one that is not empty and without NUL")
    try:
        mode = Path(text).stat().st_mode
    except OSError:
        return text
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise ValueError(f"path {text!r}: neither a regular file nor a block device")
    return text


RegionPath = Annotated[str, AfterValidator(_readable_path)]
PositiveMs = Annotated[float, Field(gt=0, le=600_000, allow_inf_nan=False)]


class ControlModel(BaseModel):
    """Base of the request's parts: unknown keys are refused, so that a typo changes nothing."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DelayNumbers(ControlModel):
    """A delay model by its numbers: fixed, per own page, per other page; microseconds."""

    a_us: float = Field(ge=0, allow_inf_nan=False)
    b_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    c_us: float = Field(default=0.0, ge=0, allow_inf_nan=False)


def _delay_kind(value: object) -> str:
    return "name" if isinstance(value, str) else "numbers"


# By kind, so that a number that is wrong is told as that and not as "no string".
Delay = Annotated[Annotated[str, Tag("name")] | Annotated[DelayNumbers, Tag("numbers")], Discriminator(_delay_kind)]


class SourceChange(ControlModel):
    """One replica. Without paths it reads the region that the layer reads now."""

    tier: str
    paths: list[RegionPath] | None = Field(default=None, min_length=1, max_length=64)
    device: str = ""
    delay: Delay | None = None
    address: str = ""
    token_file: RegionPath | None = None

    def source(self, current: Source) -> Source:
        """The source asked for; raises ConfigError where its parts do not fit together."""
        if self.tier in REMOTE_TIERS:
            if self.paths is not None or self.device or self.delay is not None:
                raise ConfigError(f"tier {self.tier}: expected an address and a token file only")
            token_file = None if self.token_file is None else Path(self.token_file)
            return make_remote_source(Tier(self.tier), self.address, token_file)
        if self.address or self.token_file is not None:
            raise ConfigError(f"tier {self.tier}: an address and a token file belong to the tiers `tcp` and `rdma`")
        paths = current.paths if self.paths is None else tuple(Path(path) for path in self.paths)
        return make_source(self.tier, paths, self._delay(), self.device)

    def _delay(self) -> DelayModel | None:
        if self.delay is None:
            return None
        if isinstance(self.delay, str):
            if self.delay not in SHIPPED:
                raise ConfigError(f"delay {self.delay!r}: expected one of {', '.join(sorted(SHIPPED))}, or numbers")
            return SHIPPED[self.delay]
        a_us, b_us, c_us = self.delay.a_us, self.delay.b_us, self.delay.c_us
        return DelayModel(f"{a_us:g}/{b_us:g}/{c_us:g}", a_us, b_us, c_us)


class LayerChange(ControlModel):
    """Another source (or several, as replicas), another cache size, or both, for one layer."""

    layer_id: int
    tier: str | None = None
    paths: list[RegionPath] | None = Field(default=None, min_length=1, max_length=64)
    device: str = ""
    delay: Delay | None = None
    address: str = ""
    token_file: RegionPath | None = None
    sources: list[SourceChange] | None = Field(default=None, min_length=1, max_length=4)
    cache_rows: int | None = Field(default=None, ge=0, le=CACHE_ROWS_MAX)
    host_cache_gib: float | None = Field(default=None, ge=0, le=HOST_CACHE_GIB_MAX, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_way_to_name_sources(self) -> LayerChange:
        single = self.tier is not None
        if single and self.sources is not None:
            raise ValueError("name either one tier or a list of sources")
        parts = (self.paths, self.device or None, self.delay, self.address or None, self.token_file)
        if not single and any(part is not None for part in parts):
            raise ValueError("paths, device, delay, address and token_file need a tier")
        return self

    def new_sources(self, current: Source) -> tuple[Source, ...] | None:
        """The replicas asked for, in order; None leaves the sources alone."""
        if self.tier is not None:
            change = SourceChange(
                tier=self.tier, paths=self.paths, device=self.device, delay=self.delay, address=self.address,
                token_file=self.token_file,
            )  # fmt: skip
            return (change.source(current),)
        if self.sources is not None:
            return tuple(change.source(current) for change in self.sources)
        return None


class ProfileChange(ControlModel):
    """What to put in place of the profile's values; it replaces all earlier changes, so {} restores the profile."""

    sessions: int | None = Field(default=None, ge=1, le=1_000_000)
    step_ms: PositiveMs | None = None
    windows_ms: dict[str, PositiveMs] | None = None
    prefill_us_per_token: float | None = Field(default=None, gt=0, le=1_000_000, allow_inf_nan=False)

    def overrides(self) -> Overrides:
        windows = None
        if self.windows_ms is not None:
            windows = {int(layer): ms for layer, ms in self.windows_ms.items() if layer.isascii() and layer.isdigit()}
            if len(windows) != len(self.windows_ms):
                raise ConfigError(f"windows_ms: keys {list(self.windows_ms)}, expected layer numbers")
        return Overrides(self.sessions, self.step_ms, windows, self.prefill_us_per_token)


class ControlRequest(ControlModel):
    """The whole request: all of it is checked before any of it is applied."""

    layers: list[LayerChange] = Field(default=[], max_length=64)
    profile: ProfileChange | None = None
    online_split: bool | None = None

    @model_validator(mode="after")
    def _asks_for_something(self) -> ControlRequest:
        ids = [change.layer_id for change in self.layers]
        if len(set(ids)) != len(ids):
            raise ValueError("layers: a layer is named twice")
        if not self.layers and self.profile is None and self.online_split is None:
            raise ValueError("nothing to change: expected `layers`, `profile` or `online_split`")
        return self


def parse_control(content: Any) -> ControlRequest:
    """The request; raises ConfigError naming the first field that is wrong."""
    try:
        return ControlRequest.model_validate(content)
    except ValidationError as exc:
        first = exc.errors()[0]
        loc = first["loc"]
        # After `delay` comes the kind that it was taken for, which is no field of the request.
        parts = [str(part) for at, part in enumerate(loc) if at == 0 or loc[at - 1] != "delay"]
        message = str(first["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{'.'.join(parts)}: {message}" if parts else message) from exc
