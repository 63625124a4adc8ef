# SPDX-License-Identifier: Apache-2.0
"""Scenarios and options: what ships, what is refused and how, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_cli.main import app
from slacktier_loadtest.arms import parse_target, placements, with_targets
from slacktier_loadtest.client import Target
from slacktier_loadtest.compare import shuffled
from slacktier_loadtest.overrides import Overrides, apply_overrides, parse_percent, parse_range
from slacktier_loadtest.running_target import split_url, write_whole
from slacktier_loadtest.scenario import Scenario, Switch, TargetSpec, load_scenario, parse_scenario, scenario_names

NOTHING: dict[str, Any] = {
    "engine": "", "targets": (), "arms": "", "devices": "", "blocks": None, "baseline": "", "users": None,
    "rate": None, "sessions": None, "turns": None, "prompt_tokens": "", "output_tokens": None, "pause": None,
    "slo_ttft_ms": None, "slo_tpot_ms": None, "slo_e2e_ms": None,
}  # fmt: skip


def overridden(scenario: Scenario, **changes: Any) -> tuple[Scenario, tuple[TargetSpec, ...]]:
    return apply_overrides(scenario, Overrides(**{**NOTHING, **changes}))


def test_every_named_scenario_ships_and_is_valid() -> None:
    named = {
        "agent", "chat", "idle-gaps", "shared-table", "one-disk", "four-disks", "rdma", "qwen3.8", "kv-memory-reuse",
        "prefill", "page-cache", "tcp",
    }  # fmt: skip
    assert named <= set(scenario_names())
    for name in scenario_names():
        scenario = load_scenario(name)
        placements(scenario.arms, is_paper=scenario.emulated.devices == "paper")
        assert bool(scenario.arms) != bool(scenario.targets)
        assert scenario.baseline in (*scenario.arms, *(target.name for target in scenario.targets))


def test_scenario_of_servers_says_what_each_is_started_with() -> None:
    reuse = load_scenario("kv-memory-reuse")
    with pytest.raises(ConfigError, match="no address") as refused:
        with_targets(reuse, [parse_target("dram=http://a:1")])
    assert "four disks" in str(refused.value)
    assert "--hicache-size" in reuse.targets[2].flags
    with pytest.raises(ConfigError, match="cannot stand in"):
        overridden(reuse, engine="emulated")


def test_prompt_lengths_can_be_given_where_a_scenario_has_some() -> None:
    scenario, _ = overridden(load_scenario("prefill"), engine="emulated", prompt_tokens="64,512")
    assert scenario.prefill is not None
    assert scenario.prefill.prompt_tokens == (64, 512)
    with pytest.raises(ConfigError, match="no prompts of fixed lengths"):
        overridden(load_scenario("agent"), engine="emulated", prompt_tokens="64")
    for wrong in ("64,x", "0", ","):
        with pytest.raises(ConfigError, match="expected lengths"):
            overridden(load_scenario("prefill"), engine="emulated", prompt_tokens=wrong)


def test_only_a_binding_of_tierds_is_waited_for() -> None:
    switch = {"url": "http://head:8080/v1/bindings/pod-0", "method": "PUT", "body": {}, "is_binding": True}
    assert Switch.model_validate(switch).is_binding
    with pytest.raises(ValidationError, match="v1/bindings/INSTANCE"):
        Switch.model_validate({**switch, "url": "http://head:8080/v1/pools/disk"})


def test_paper_devices_replace_the_disk_and_nothing_else() -> None:
    dram, nvme, tcp, cache = placements(("dram", "nvme-split", "tcp", "page-cache"), is_paper=True)
    assert (dram.first.tier, tcp.first.tier, cache.first.tier) == (Tier.DRAM, Tier.TCP, Tier.NVME)
    assert (nvme.first.tier, nvme.first.delay, nvme.is_cached) == (Tier.EMULATED, "paper-nvme-shared", True)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({"title": "x", "speed": {}}, "speed: Extra inputs"),
        ({"title": "x", "load": {}}, "load: name either users"),
        ({"title": "x", "load": {"users": 1, "rate_per_s": 1}}, "load: name either users"),
        ({"title": "x", "pause_s": [6, 1]}, "the shorter pause first"),
        ({"title": "x", "arms": ["a", "a"]}, "named twice"),
        ({"title": "x", "targets": [{"name": "a", "switch": [{}]}]}, "switch.0: name either url or file"),
        ({"title": "x", "targets": [{"name": "a", "switch": [{"file": "/x"}]}]}, "file needs its content"),
        ([], "valid dictionary"),
    ],
)
def test_bad_scenarios_are_refused_where_they_are_bad(content: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_scenario(content, "test")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "nothing to send to"),
        ({"engine": "sglang"}, "expected emulated"),
        ({"engine": "emulated", "targets": ("a=http://a:1",)}, "expected one of them"),
        ({"targets": ("a=http://a:1",), "arms": "dram"}, "placements of the emulated engine"),
        ({"targets": ("a=http://a:1", "a=http://b:1")}, "given twice"),
        ({"targets": ("=",)}, "expected NAME=URL"),
        ({"engine": "emulated", "users": 3, "rate": 2.0}, "closed or open loop"),
        ({"engine": "emulated", "pause": (5.0, 1.0)}, "shorter pause first"),
    ],
)
def test_options_that_do_not_go_together_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        overridden(load_scenario("agent"), **changes)


def test_options_win_over_the_scenario() -> None:
    scenario, targets = overridden(
        load_scenario("agent"), engine="emulated", arms="nvme,dram", rate=2.5, sessions=9, blocks=7, devices="paper",
        slo_tpot_ms=30.0,
    )  # fmt: skip
    assert targets == ()
    assert scenario.arms == ("nvme", "dram")
    assert (scenario.load.rate_per_s, scenario.load.users) == (2.5, None)
    assert (scenario.workload.sessions, scenario.blocks, scenario.emulated.devices) == (9, 7, "paper")
    assert (scenario.baseline, scenario.slo.tpot_ms) == ("dram", 30.0)


def test_every_round_has_every_arm_once_in_an_order_of_its_own() -> None:
    order = shuffled(("a", "b", "c", "d"), 12, seed=1)
    rounds = [[arm for round_index, arm in order if round_index == r] for r in range(12)]
    assert all(sorted(each) == ["a", "b", "c", "d"] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 4
    assert order == shuffled(("a", "b", "c", "d"), 12, seed=1)


def test_percentages_and_ranges_as_people_write_them() -> None:
    assert (parse_percent("1.4%"), parse_percent("2"), parse_percent("")) == (1.4, 2.0, None)
    assert (parse_range("1-6"), parse_range("2"), parse_range("")) == ((1.0, 6.0), (2.0, 2.0), None)
    for bad in ("x%", "nan", "1e9"):
        with pytest.raises(ConfigError):
            parse_percent(bad)
    with pytest.raises(ConfigError):
        parse_range("fast")


@pytest.mark.parametrize("url", ["ftp://a", "http://", "a:1", "http://a:x", "http://u:p@a:1", "http://a/?q=1"])
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="server address"):
        Target.parse(url)


def test_address_with_prefix_and_version_keeps_the_prefix() -> None:
    target = Target.parse("https://host/serve/v1/", {"Authorization": "Bearer k"})
    assert (target.host, target.port, target.prefix, target.is_tls) == ("host", 443, "/serve", True)
    sent = target.request("POST", "/v1/completions", b"{}", "text/event-stream")
    assert sent.startswith(b"POST /serve/v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k\r\n" in sent


def test_control_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text("old")
    write_whole(path, {"a": 1})
    assert path.read_text() == '{\n "a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_switch_urls_are_split_where_the_path_begins() -> None:
    assert split_url("http://head:8100/v1/bindings/x?y=1") == ("http://head:8100", "/v1/bindings/x?y=1")
    with pytest.raises(ConfigError, match="expected http"):
        split_url("head/v1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("compare",), "nothing to send to"),
        (("compare", "--scenario", "nope"), "No such file"),
        (("compare", "--engine", "emulated", "--arms", "dram,tape"), "no such placement"),
        (("compare", "--engine", "emulated", "--baseline", "nvme-x"), "not among the arms"),
        (("compare", "--engine", "emulated", "--max-tpot-overhead", "much"), "expected a percentage"),
        (("run", "--target", "localhost:8000"), "server address"),
        (("run", "--target", "http://a:1", "--api", "grpc"), "expected completions or chat"),
        (("run", "--target", "http://a:1", "--trace", "x.csv"), "expected a token file"),
        (("run", "--target", "http://a:1", "--remote-workers"), "say how many"),
        (("worker", "--master", "head"), "expected HOST:PORT"),
    ],
)
def test_bad_input_is_a_config_error_and_leaves_nothing_behind(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    out = tmp_path / "out"
    further = () if arguments[0] == "worker" else ("--out", str(out))
    done = CliRunner().invoke(app, ["loadtest", *arguments, *further])
    assert isinstance(done.exception, ConfigError)
    assert complaint in str(done.exception)
    assert not out.exists()
