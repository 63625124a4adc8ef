# SPDX-License-Identifier: Apache-2.0
"""`--layer` and `--cache-rows`: what they mean and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from slacktier.delay import SHIPPED, DelayModel
from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_emulated.layers import Source, parse_layer, plan_layers


def test_layers_come_in_order_of_use_with_replicas_in_the_order_given() -> None:
    plans = plan_layers(["14=nvme:/b0,/b1", "1=dram:/a", "14=dram:/c"], ["1=5", "14=500_000"], (1, 14))
    assert [plan.layer_id for plan in plans] == [1, 14]
    assert plans[1].sources == (
        Source(Tier.NVME, (Path("/b0"), Path("/b1"))),
        Source(Tier.DRAM, (Path("/c"),)),
    )
    assert [plan.cache_rows for plan in plans] == [5, 500_000]


def test_emulated_source_carries_its_delay_and_shares_a_device_with_equal_ones() -> None:
    assert parse_layer("1=emulated@paper-rdma:/a") == (
        1, Source(Tier.EMULATED, (Path("/a"),), "paper-rdma", SHIPPED["paper-rdma"]),
    )  # fmt: skip
    assert parse_layer("1=emulated@300/3.05/0.37@disk0:/a")[1].delay == DelayModel("300/3.05/0.37", 300, 3.05, 0.37)
    assert parse_layer("1=emulated@300/0/0:/a")[1].device == "300-0-0"


def test_file_can_be_read_through_the_page_cache() -> None:
    source = parse_layer("1=nvme@page-cache:/a")[1]
    assert source == Source(Tier.NVME, (Path("/a"),), page_cache=True)
    assert source.describe()["page_cache"] is True


@pytest.mark.parametrize("tier", ["tcp", "rdma"])
def test_another_node_is_named_by_token_file_and_address(tier: str) -> None:
    layer_id, source = parse_layer(f"14={tier}@/run/rows.token:[fe80::1]:7400")
    assert (layer_id, source.address, source.token_file) == (14, "[fe80::1]:7400", Path("/run/rows.token"))
    assert source.describe() == {"tier": tier, "address": "[fe80::1]:7400"}  # the status does not say where a token is


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1=nvme@page-cache:/a,/b", "2 paths, expected one"),
        ("1=dram@page-cache:/a", "neither a shipped model"),
        ("nvme:/a", "expected LAYER="),
        ("1=nvme", "expected LAYER="),
        ("x=nvme:/a", "layer number"),
        ("-1=nvme:/a", "layer number"),
        ("1=nvme:", "no path"),
        ("1=disk:/a", "expected one of dram, nvme, rdma, tcp, emulated"),
        ("1=rdma:/a", "no token file given"),
        ("1=emulated:/a", "delay model is missing"),
        ("1=emulated@fast:/a", "neither a shipped model"),
        ("1=emulated@1/2:/a", "neither a shipped model"),
        ("1=emulated@-1/0/0:/a", "expected 0 to 6e"),
        ("1=emulated@nan/0/0:/a", "expected 0 to 6e"),
        ("1=emulated@1/0/0@a b:/a", "letters, digits"),
        ("1=emulated@1/0/0@d@e:/a", "expected LAYER="),
        ("1=nvme@paper-rdma:/a", "belongs to the tier"),
        ("1=tcp:node:7400", "no token file given"),
        ("1=tcp@:node:7400", "no token file given"),
        ("1=tcp@/t:node", "expected HOST:PORT"),
        ("1=tcp@/t:fe80::1:7400", "expected HOST:PORT"),
        ("1=tcp@/t:node:70000", "expected HOST:PORT"),
    ],
)
def test_layer_that_makes_no_sense_is_refused_with_a_reason(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_layer(text)


@pytest.mark.parametrize(
    ("layers", "cache_rows", "complaint"),
    [
        ([], [], "no --layer"),
        (["2=nvme:/a"], [], "layer 2 is not in the profile: it knows layers 1, 14"),
        (["1=nvme:/a"], ["14=5"], "layer 14, which has no --layer"),
        (["1=nvme:/a"], ["1=many"], "expected LAYER=ROWS"),
        (["1=nvme:/a"], ["1=-5"], "expected LAYER=ROWS"),
        (["1=nvme:/a"], ["1"], "expected LAYER=ROWS"),
        (["1=emulated@1/0/0@d:/a", "14=emulated@2/0/0@d:/b"], [], "expected one delay model"),
    ],
)
def test_plan_that_does_not_fit_together_is_refused(layers: list[str], cache_rows: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan_layers(layers, cache_rows, (1, 14))


def test_second_level_is_given_in_gib_and_refused_where_it_makes_no_sense() -> None:
    assert plan_layers(["1=nvme:/a"], [], (1, 14), ["1=2.5"])[0].host_cache_bytes == 5 << 29
    for text, complaint in (("14=1", "layer 14, which has no --layer"), ("1=-1", "0 to 4096 GiB"), ("1=nan", "GiB")):
        with pytest.raises(ConfigError, match=complaint):
            plan_layers(["1=nvme:/a"], [], (1, 14), [text])
