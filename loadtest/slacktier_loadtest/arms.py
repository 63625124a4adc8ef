# SPDX-License-Identifier: Apache-2.0
"""Arms by name: placements of the emulated engine, or servers that run already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_cli.demo.arms import Arm, LayerSource, parse_arm
from slacktier_cli.demo.arms import arm_names as placement_names
from slacktier_loadtest.scenario import Scenario, TargetSpec

PAGE_CACHE: Final = "page-cache"
DEFAULT_ARMS: Final = ("dram", "nvme", "nvme-split", "tcp")
# What --devices paper puts in place of this machine's disk.
PAPER_DISK: Final = "paper-nvme-shared"

_FURTHER: Final = {
    "tcp": Arm("tcp", "both layers in another process's memory, over TCP", *(LayerSource(Tier.TCP),) * 2, False),
    # Its layers are served by a server of its own, through the page cache; see memory_cap.py.
    PAGE_CACHE: Arm(PAGE_CACHE, "both layers on this disk, page cache", *(LayerSource(Tier.NVME),) * 2, False),
}  # fmt: skip


def arm_names() -> tuple[str, ...]:
    """All placements that the emulated engine can be put into."""
    return (*placement_names(), *_FURTHER)


def placements(names: Sequence[str], *, is_paper: bool) -> tuple[Arm, ...]:
    """The arms of these names, each once; raises ConfigError with the names that there are.

    is_paper  the disk is an emulated one with the paper's read times; the page cache is always this machine's
    """
    if len(set(names)) != len(names):
        raise ConfigError(f"arms {', '.join(names)}: an arm is named twice")
    return tuple(_placement(name, is_paper=is_paper) for name in names)


def _placement(name: str, *, is_paper: bool) -> Arm:
    if name not in arm_names():
        raise ConfigError(f"arm {name!r}: no such placement", hint=f"there are {', '.join(arm_names())}")
    arm = _FURTHER[name] if name in _FURTHER else parse_arm(name)
    if not is_paper or name == PAGE_CACHE:
        return arm
    disk = LayerSource(Tier.EMULATED, PAPER_DISK)
    first, later = (disk if source.tier is Tier.NVME else source for source in (arm.first, arm.later))
    title = arm.title.replace("this disk", f"{PAPER_DISK}, emulated")
    return replace(arm, first=first, later=later, title=title)


def parse_target(text: str) -> TargetSpec:
    """`NAME=URL[,URL...]` of the command line; a bare URL is named server."""
    name, equals, urls = text.partition("=")
    if not equals or name.startswith("http"):
        name, urls = "server", text
    found = tuple(url for url in urls.split(",") if url)
    if not found:
        raise ConfigError(f"--target {text!r}: expected NAME=URL, such as stock=http://127.0.0.1:8000")
    try:
        return TargetSpec(name=name, urls=found)
    except ValueError as exc:
        raise ConfigError(f"--target {text!r}: name {name!r}: expected letters, digits, dots and dashes") from exc


def with_targets(scenario: Scenario, given: Sequence[TargetSpec]) -> tuple[TargetSpec, ...]:
    """The scenario's servers with the addresses given for them; servers that it does not name are added.

    raises  ConfigError for a server without an address, with what it is to be started with
    """
    by_name = {target.name: target for target in given}
    if len(by_name) != len(given):
        raise ConfigError("--target: a name is given twice")
    named = [
        target.model_copy(update={"urls": by_name.pop(target.name).urls}) if target.name in by_name else target
        for target in scenario.targets
    ]
    for target in named:
        if not target.urls:
            flags = f" (started with {target.flags})" if target.flags else ""
            raise ConfigError(
                f"server {target.name}{flags}: no address", hint=f"--target {target.name}=http://HOST:PORT"
            )
    return (*named, *by_name.values())
