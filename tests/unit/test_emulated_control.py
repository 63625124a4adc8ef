# SPDX-License-Identifier: Apache-2.0
"""Control requests: what they may ask for; a typo changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_emulated.control import parse_control
from slacktier_emulated.layers import Source
from slacktier_emulated.profile import Overrides

CURRENT = Source(Tier.NVME, (Path("/now"),))


def sources(change: dict[str, Any]) -> tuple[Source, ...] | None:
    return parse_control({"layers": [{"layer_id": 1, **change}]}).layers[0].new_sources(CURRENT)


def test_tier_without_paths_reads_the_region_that_is_read_now() -> None:
    assert sources({"tier": "dram"}) == (Source(Tier.DRAM, (Path("/now"),)),)
    assert sources({"tier": "nvme", "paths": ["/a", "/b"]}) == (Source(Tier.NVME, (Path("/a"), Path("/b"))),)
    assert sources({"cache_rows": 5}) is None


def test_delay_is_a_shipped_model_or_numbers() -> None:
    shipped = Source(Tier.EMULATED, (Path("/now"),), "paper-rdma", SHIPPED["paper-rdma"])
    assert sources({"tier": "emulated", "delay": "paper-rdma"}) == (shipped,)
    own = Source(Tier.EMULATED, (Path("/now"),), "disk0", DelayModel("300/3.5/0", 300.0, 3.5, 0.0))
    assert sources({"tier": "emulated", "delay": {"a_us": 300, "b_us": 3.5}, "device": "disk0"}) == (own,)


def test_replicas_are_a_list_in_order() -> None:
    assert sources({"sources": [{"tier": "nvme", "paths": ["/a"]}, {"tier": "dram"}]}) == (
        Source(Tier.NVME, (Path("/a"),)), Source(Tier.DRAM, (Path("/now"),)),
    )  # fmt: skip


def test_profile_changes_replace_each_other() -> None:
    request = parse_control({"profile": {"sessions": 128, "windows_ms": {"1": 0.5}}})
    assert request.profile is not None
    assert request.profile.overrides() == Overrides(sessions=128, windows_ms={1: 0.5})
    empty = parse_control({"profile": {}})
    assert empty.profile is not None
    assert empty.profile.overrides() == Overrides()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "nothing to change"),
        ({"layers": []}, "nothing to change"),
        ({"layer": []}, "layer"),
        ({"layers": [{"layer_id": "1"}]}, "layers.0.layer_id"),
        ({"layers": [{"layer_id": 1}, {"layer_id": 1}]}, "named twice"),
        ({"layers": [{"layer_id": 1, "cache_rows": -1}]}, "cache_rows"),
        ({"layers": [{"layer_id": 1, "cache_rows": 1.5}]}, "cache_rows"),
        ({"layers": [{"layer_id": 1, "paths": ["/a"]}]}, "need a tier"),
        ({"layers": [{"layer_id": 1, "tier": "dram", "paths": []}]}, "paths"),
        ({"layers": [{"layer_id": 1, "tier": "dram", "sources": [{"tier": "dram"}]}]}, "either one tier"),
        ({"layers": [{"layer_id": 1, "typo": 1}]}, "typo"),
        ({"layers": [{"layer_id": 1, "tier": "nvme", "paths": ["a\0b"]}]}, "without NUL"),
        ({"layers": [{"layer_id": 1, "tier": "nvme", "paths": [""]}]}, "not empty"),
        ({"layers": [{"layer_id": 1, "sources": [{"tier": "nvme", "paths": ["/dev/null"]}]}]}, "nor a block device"),
        ({"profile": {"step_ms": -1.0}}, "step_ms"),
        ({"profile": {"sessions": 0}}, "sessions"),
        ({"profile": {"windows_ms": {"1": "fast"}}}, "windows_ms"),
        ([], "dictionary|instance"),
    ],
)
def test_wrong_request_is_refused_by_field(content: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_control(content)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tier": "rdma"}, "no token file given"),
        ({"tier": "rdma", "paths": ["/a"]}, "expected an address and a token file only"),
        ({"tier": "floppy"}, "expected one of"),
        ({"tier": "emulated"}, "delay model is missing"),
        ({"tier": "emulated", "delay": "fast"}, "expected one of"),
        ({"tier": "nvme", "delay": "paper-rdma"}, "belongs to the tier"),
    ],
)
def test_source_that_makes_no_sense_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        sources(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delay": {"a_us": -1}}, "layers.0.delay.a_us: Input should be greater than or equal to 0"),
        ({"delay": {"a_us": 1, "d_us": 1}}, "layers.0.delay.d_us: Extra inputs are not permitted"),
        ({"delay": 5}, "layers.0.delay: Input should be a valid dictionary or instance of DelayNumbers"),
        ({"paths": [""]}, "layers.0.paths.0: path '': expected one that is not empty and without NUL"),
        ({"sources": []}, "layers.0.sources: List should have at least 1 item after validation, not 0"),
        ({"sources": [{"tier": "dram"}]}, "layers.0: name either one tier or a list of sources"),
    ],
)
def test_message_names_the_field_once_and_nothing_of_the_parser(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_control({"layers": [{"layer_id": 1, "tier": "emulated", **change}]})
    assert str(caught.value) == message


def test_window_of_something_that_is_no_layer_is_refused() -> None:
    request = parse_control({"profile": {"windows_ms": {"first": 0.5}}})
    assert request.profile is not None
    with pytest.raises(ConfigError, match="layer numbers"):
        request.profile.overrides()
