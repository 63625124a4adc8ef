# SPDX-License-Identifier: Apache-2.0
"""The placements that a demo compares, by name.

An arm says for each layer which tier serves it, and whether the layers share a row cache, split evenly. `paper-...`
arms are emulated: bytes come from DRAM and a named delay model holds them back as the paper's device would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from slacktier.delay import SHIPPED
from slacktier.errors import ConfigError
from slacktier.tiers import Tier

BASELINE: Final = "dram"
DEFAULT_ARMS: Final = ("dram", "nvme", "nvme-split", "later-nvme")
_SPLIT: Final = "-split"


@dataclass(frozen=True, slots=True)
class LayerSource:
    """Where one layer's rows come from; `delay` names a shipped model for the tier `emulated`, else ""."""

    tier: Tier
    delay: str = ""


@dataclass(frozen=True, slots=True)
class Arm:
    """One placement of both layers: the first layer of use and the later one."""

    name: str
    title: str
    first: LayerSource
    later: LayerSource
    is_cached: bool

    @property
    def is_emulated_device(self) -> bool:
        return Tier.EMULATED in (self.first.tier, self.later.tier)

    def source(self, layer_index: int) -> LayerSource:
        return self.first if layer_index == 0 else self.later

    def cache_rows(self, layer_index: int, budget: int, layer_count: int) -> int:
        """This layer's rows of a budget split evenly; what does not divide goes to the first layers."""
        if not self.is_cached:
            return 0
        return budget // layer_count + (layer_index < budget % layer_count)


def _bases() -> dict[str, tuple[str, LayerSource, LayerSource]]:
    dram, nvme = LayerSource(Tier.DRAM), LayerSource(Tier.NVME)
    emulated = {
        name: (f"both layers on {name}, emulated", *(LayerSource(Tier.EMULATED, name),) * 2) for name in SHIPPED
    }
    return {
        "dram": ("both layers in DRAM", dram, dram),
        "nvme": ("both layers on this disk", nvme, nvme),
        "later-nvme": ("first layer in DRAM, later layer on this disk", dram, nvme),
        **emulated,
    }


def arm_names() -> tuple[str, ...]:
    """All names that parse_arms() knows."""
    return tuple(name + suffix for name in _bases() for suffix in ("", _SPLIT) if name + suffix != "dram-split")


def parse_arm(name: str) -> Arm:
    """An arm by its name; raises ConfigError with the names that there are."""
    if name not in arm_names():
        raise ConfigError(f"arm {name!r}: no such arm", hint=f"there are {', '.join(arm_names())}")
    is_cached = name.endswith(_SPLIT)
    title, first, later = _bases()[name.removesuffix(_SPLIT)]
    return Arm(name, f"{title}, row cache split evenly" if is_cached else title, first, later, is_cached)


def parse_arms(names: Sequence[str]) -> tuple[Arm, ...]:
    """Arms by name, each once; the baseline must be among them, since the others are compared with it."""
    arms = tuple(parse_arm(name) for name in names)
    if len({arm.name for arm in arms}) != len(arms):
        raise ConfigError(f"arms {', '.join(names)}: an arm is named twice")
    if BASELINE not in names:
        raise ConfigError(f"arms {', '.join(names)}: {BASELINE} is missing, which the others are compared with")
    return arms
