# SPDX-License-Identifier: Apache-2.0
"""What `--layer`, `--cache-rows` and control calls say about where a layer's rows come from; parsing only, no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from slacktier.cache_policy import CachePolicy
from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError
from slacktier.tiers import REMOTE_TIERS, Tier
from slacktier_native.row_link import parse_address

CACHE_ROWS_MAX: Final = 1 << 31
HOST_CACHE_GIB_MAX: Final = 4096
_DEVICE_NAME: Final = re.compile(r"[A-Za-z0-9.-]{1,64}")
PAGE_CACHE: Final = "page-cache"
GRAMMAR: Final = (
    f"LAYER=nvme:PATH[,PATH...] | LAYER=nvme@{PAGE_CACHE}:PATH | LAYER=dram:PATH | "
    "LAYER=tcp@TOKEN_FILE:HOST:PORT | LAYER=rdma@TOKEN_FILE:HOST:PORT | LAYER=emulated@DELAY[@DEVICE]:PATH"
)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Source:
    """One replica of a layer's rows: the tier, its stripes, and for `emulated` the device's name and delay model.

    page_cache  the file is mapped and read through the kernel's page cache: what others do, to compare with
    address, token_file  of the row server or memory node, for `tcp` and `rdma`, which have no paths
    """

    tier: Tier
    paths: tuple[Path, ...]
    device: str = ""
    delay: DelayModel | None = None
    page_cache: bool = False
    address: str = ""
    token_file: Path | None = None

    @property
    def where(self) -> str:
        """For messages: the paths, or the address."""
        return self.address or ", ".join(map(str, self.paths))

    def describe(self) -> dict[str, object]:
        """As status shows it; `emulated` never looks like a device that is there."""
        if self.tier in REMOTE_TIERS:
            return {"tier": self.tier.value, "address": self.address}
        text: dict[str, object] = {"tier": self.tier.value, "paths": [str(path) for path in self.paths]}
        if self.page_cache:
            text["page_cache"] = True
        if self.delay is not None:
            text |= {"device": self.device, "delay": describe_delay(self.delay)}
        return text


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One lookup layer: replicas in order of preference, its share of the row cache, and its second level's bytes."""

    layer_id: int
    sources: tuple[Source, ...]
    cache_rows: int = 0
    host_cache_bytes: int = 0
    cache_policy: CachePolicy = CachePolicy.CLOCK


def describe_delay(model: DelayModel) -> dict[str, object]:
    return {"name": model.name, "a_us": model.a_us, "b_us": model.b_us, "c_us": model.c_us}


def parse_delay(text: str) -> DelayModel:
    """A shipped model's name, or `A/B/C` in microseconds: fixed, per own page, per other page."""
    if text in SHIPPED:
        return SHIPPED[text]
    parts = text.split("/")
    try:
        a_us, b_us, c_us = (float(part) for part in parts)
    except ValueError as exc:
        raise ConfigError(
            f"delay {text!r}: neither a shipped model nor A/B/C in microseconds",
            hint=f"shipped models: {', '.join(sorted(SHIPPED))}; or for example 230/0/0",
        ) from exc
    return DelayModel(text, a_us, b_us, c_us)


def make_source(tier_name: str, paths: Sequence[Path], delay: DelayModel | None, device: str) -> Source:
    """A source whose parts fit together; raises ConfigError otherwise."""
    try:
        tier = Tier(tier_name)
    except ValueError as exc:
        raise ConfigError(f"tier {tier_name!r}: expected one of {', '.join(Tier)}") from exc
    if tier in REMOTE_TIERS:
        raise ConfigError(f"tier {tier}: expected an address and a token file", hint=f"expected {GRAMMAR}")
    if not paths:
        raise ConfigError(f"tier {tier}: no path given")
    if tier is not Tier.EMULATED:
        if delay is not None or device:
            raise ConfigError(f"tier {tier}: a delay or device name belongs to the tier `emulated`")
        return Source(tier, tuple(paths))
    if delay is None:
        raise ConfigError(
            "tier emulated: a delay model is missing", hint=f"emulated@MODEL:PATH with {', '.join(sorted(SHIPPED))}"
        )
    # Layers on one named device share its queue, so layers with one model meet on one device unless told otherwise.
    name = device or delay.name.replace("/", "-")
    if not _DEVICE_NAME.fullmatch(name):
        raise ConfigError(f"device {name!r}: expected 1 to 64 letters, digits, dots and dashes")
    return Source(tier, tuple(paths), name, delay)


def page_cache_source(paths: Sequence[Path]) -> Source:
    """A mapped file; raises ConfigError for more than one, since a mapping has no stripes."""
    if len(paths) != 1:
        raise ConfigError(f"nvme@{PAGE_CACHE}: {len(paths)} paths, expected one")
    return Source(Tier.NVME, tuple(paths), page_cache=True)


def make_remote_source(tier: Tier, address: str, token_file: Path | None) -> Source:
    """A row server or memory node as a source; raises ConfigError where address or token file is missing or none."""
    if token_file is None or not token_file.name:
        raise ConfigError(f"tier {tier}: no token file given", hint=f"{tier}@TOKEN_FILE:HOST:PORT")
    parse_address(address)
    return Source(tier, (), address=address, token_file=token_file)


def parse_layer(text: str) -> tuple[int, Source]:
    """`1=nvme:/data/layer1` and its kin (GRAMMAR) as (layer_id, source)."""
    layer_text, equals, rest = text.partition("=")
    head, colon, paths_text = rest.partition(":")
    if not equals or not colon:
        raise ConfigError(f"--layer {text!r}: expected {GRAMMAR}")
    if head.partition("@")[0] in REMOTE_TIERS:
        return _parse_remote_layer(text, layer_text, head, paths_text)
    tier_name, *options = head.split("@")
    if len(options) > 2:
        raise ConfigError(f"--layer {text!r}: expected {GRAMMAR}")
    paths = [Path(path) for path in paths_text.split(",") if path]
    if tier_name == Tier.NVME and options == [PAGE_CACHE]:
        return _layer_id(layer_text), page_cache_source(paths)
    delay = parse_delay(options[0]) if options else None
    try:
        return _layer_id(layer_text), make_source(tier_name, paths, delay, "".join(options[1:]))
    except ConfigError as exc:
        raise ConfigError(f"--layer {text}: {exc}", hint=exc.hint) from exc


def _parse_remote_layer(text: str, layer_text: str, head: str, address: str) -> tuple[int, Source]:
    tier, _, token = head.partition("@")
    try:
        return _layer_id(layer_text), make_remote_source(Tier(tier), address, Path(token) if token else None)
    except ConfigError as exc:
        raise ConfigError(f"--layer {text}: {exc}", hint=exc.hint) from exc


def parse_cache_rows(text: str) -> tuple[int, int]:
    """`1=500000` as (layer_id, rows)."""
    layer_text, _, rows_text = text.partition("=")
    try:
        rows = int(rows_text.replace("_", ""))
    except ValueError:
        rows = -1
    if not 0 <= rows <= CACHE_ROWS_MAX:
        raise ConfigError(f"--cache-rows {text!r}: expected LAYER=ROWS with 0 to {CACHE_ROWS_MAX} rows")
    return _layer_id(layer_text), rows


def parse_host_cache(text: str) -> tuple[int, int]:
    """`1=2.5` as (layer_id, bytes): GiB of host memory."""
    layer_text, _, gib_text = text.partition("=")
    try:
        gib = float(gib_text)
    except ValueError:
        gib = -1.0
    if not 0 <= gib <= HOST_CACHE_GIB_MAX:
        raise ConfigError(f"--host-cache {text!r}: expected LAYER=GIB with 0 to {HOST_CACHE_GIB_MAX} GiB")
    return _layer_id(layer_text), int(gib * (1 << 30))


def _layer_id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"layer {text!r}: expected a layer number")
    return int(text)


def by_layer(pairs: Iterable[tuple[int, Value]]) -> dict[int, list[Value]]:
    """Values given for each layer, in the order given."""
    grouped: dict[int, list[Value]] = {}
    for layer_id, value in pairs:
        grouped.setdefault(layer_id, []).append(value)
    return grouped


def plan_layers(
    layers: Sequence[str], cache_rows: Sequence[str], known: Sequence[int], host_cache: Sequence[str] = ()
) -> tuple[LayerPlan, ...]:
    """All layers in order of use from the command's options.

    known   the profile's layer ids
    raises  ConfigError for a layer that the profile does not know, or cache rows for a layer without a source
    """
    if not layers:
        raise ConfigError("no --layer given", hint=f"expected {GRAMMAR}")
    sources = by_layer(parse_layer(text) for text in layers)
    rows = by_layer(parse_cache_rows(text) for text in cache_rows)
    host = by_layer(parse_host_cache(text) for text in host_cache)
    for layer_id in sources:
        if layer_id not in known:
            raise ConfigError(f"layer {layer_id} is not in the profile: it knows layers {', '.join(map(str, known))}")
    for option, given in (("--cache-rows", rows), ("--host-cache", host)):
        for layer_id in given.keys() - sources.keys():
            raise ConfigError(f"{option} for layer {layer_id}, which has no --layer")
    plans = tuple(
        LayerPlan(layer_id, tuple(sources[layer_id]), rows.get(layer_id, [0])[-1], host.get(layer_id, [0])[-1])
        for layer_id in sorted(sources)
    )
    check_devices(plans)
    return plans


def check_devices(plans: Iterable[LayerPlan]) -> None:
    """A device has one delay model, whichever layers share it; raises ConfigError for two."""
    models: dict[str, DelayModel] = {}
    for source in (source for plan in plans for source in plan.sources if source.delay is not None):
        assert source.delay is not None  # noqa: S101 - the line above chose those
        if models.setdefault(source.device, source.delay) != source.delay:
            raise ConfigError(
                f"emulated device {source.device!r}: {models[source.device].name} and {source.delay.name}, "
                "expected one delay model",
                hint="name another device: emulated@DELAY@DEVICE:PATH",
            )
