# SPDX-License-Identifier: Apache-2.0
"""The plugin's file: what it says, and one clear line for each way to get it wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slacktier.errors import ConfigError
from slacktier.tiers import Tier
from slacktier_engine.settings import Binding, OnMismatch, load_binding, load_settings, parse_binding
from slacktier_native.rdma import RdmaSettings, RdmaSpec, ReadUnit

TABLE: dict[str, Any] = {"layer": 1, "sources": [{"tier": "nvme", "paths": ["/tables/l1.region"]}], "cache_rows": 100}


def test_a_file_names_replicas_in_order(tmp_path: Path) -> None:
    path = tmp_path / "slacktier.yaml"
    path.write_text(
        "tables:\n"
        "- layer: 14\n"
        "  sources:\n"
        "  - {tier: nvme, paths: [/dev/nvme0n1, /dev/nvme1n1]}\n"
        "  - {tier: emulated, paths: [/tables/l14.region], device: disk, delay: paper-rdma}\n"
        "  - {tier: tcp, address: 'memory-0:9200', token_file: /run/token}\n"
        "  - {tier: rdma, address: 'memory-1:9300', token_file: /run/token, silent_s: 3,\n"
        "     rdma: {device: mlx5_0, unit: page}}\n"
        "  cache_rows: 1000\n"
        "  host_cache_gib: 2.5\n"
        "check: {rate: 0.25, on_mismatch: count}\n"
    )
    settings = load_settings(str(path))
    setup = settings.tables[0].setup()
    assert [source.tier for source in setup.sources] == [Tier.NVME, Tier.EMULATED, Tier.TCP, Tier.RDMA]
    memory_node = setup.sources[3]
    assert isinstance(memory_node, RdmaSpec)
    assert memory_node.settings == RdmaSettings(device="mlx5_0", unit=ReadUnit.PAGE, timeout_s=3.0)
    assert (setup.cache_rows, setup.host_cache_bytes) == (1000, 5 << 29)
    assert setup.sources[2].label == "tcp:memory-0:9200"
    assert setup.sources[0].label == "nvme:/dev/nvme0n1,/dev/nvme1n1"
    assert (settings.check.rate, settings.check.on_mismatch) == (0.25, OnMismatch.COUNT)


def test_the_variable_may_hold_the_object_itself() -> None:
    settings = load_settings(json.dumps({"tables": [TABLE]}))
    assert settings.tables[0].cache_rows == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": []}, "expected either tables, or tierd"),
        ({"tables": [TABLE, TABLE]}, "layer 1 stands twice in tables"),
        ({"tables": [{**TABLE, "cache_row": 5}]}, "tables[0].cache_row: unknown key"),
        ({"tables": [{**TABLE, "sources": [{"tier": "nvme"}]}]}, "a source of tier nvme needs paths"),
        ({"tables": [{**TABLE, "sources": [{"tier": "emulated", "paths": ["x"]}]}]}, "emulated ones need a name"),
        ({"tables": [{**TABLE, "sources": [{"tier": "tape", "paths": ["x"]}]}]}, "unknown value 'tape'"),
        ({"tables": [{**TABLE, "sources": [{"tier": "tcp", "address": "m:1"}]}]}, "tcp needs address and token_file"),
        ({"tables": [{**TABLE, "sources": [{"tier": "rdma", "paths": ["x"]}]}]}, "rdma needs address and token_file"),
        (
            {"tables": [{**TABLE, "sources": [{"tier": "nvme", "paths": ["x"], "rdma": {"device": "mlx5_0"}}]}]},
            "rdma belongs to tier rdma, this source is of tier nvme",
        ),
        ({"tables": [{**TABLE, "host_cache_gib": -1}]}, "tables[0].host_cache_gib: -1"),
        (
            {"tables": [{**TABLE, "sources": [{"tier": "tcp", "address": "m", "token_file": "t"}]}]},
            "address 'm': expected HOST:PORT",
        ),
        ({"check": {"rate": 1.5}}, "check.rate: 1.5"),
        ({"reads": {"timeout_s": 0}}, "reads.timeout_s: 0"),
        ({"listen": {"port": 0}}, "listen.port: 0"),
    ],
)
def test_a_mistake_is_one_line_that_says_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(json.dumps({"tables": [TABLE], **change}))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"tables: [", "neither YAML nor JSON"), (b"- 1", "holds a list"), (b"\xff\xfe\x00", "not UTF-8")],
)
def test_a_file_that_is_none_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "slacktier.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_settings(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no\.yaml: No such file"):
        load_settings(str(tmp_path / "no.yaml"))


def test_a_binding_changes_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "binding.yaml"
    path.write_text("check_rate: 0.5\n")
    assert load_binding(path) == Binding(check_rate=0.5)


def test_a_binding_cannot_ask_for_both() -> None:
    text = '{"lossy": {"seen_set": "s.bin", "layers": [1]}, "lossy_off": true}'
    with pytest.raises(ConfigError, match="lossy and lossy_off exclude each other"):
        parse_binding(text, "binding")


NEEDS: dict[str, Any] = {
    "step_ms": 29.9,
    "layers": [{"layer_id": 1, "table": "t", "window_ms": 0.27, "misses": [{"cache_rows": 0, "pages": 100.0}]}],
}


def test_tierd_may_say_where_the_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tierd = {"url": "http://head:8080", "token_file": "/run/token", "needs": NEEDS}
    with pytest.raises(ConfigError, match="instance: name this server, here or in SLACKTIER_INSTANCE"):
        load_settings(json.dumps({"tierd": tierd}))
    monkeypatch.setenv("SLACKTIER_INSTANCE", "serving.engine-0")
    settings = load_settings(json.dumps({"tierd": tierd}))
    assert settings.tierd is not None
    assert settings.tierd.address().instance == "serving.engine-0"
    with pytest.raises(ConfigError, match="expected either tables, or tierd"):
        load_settings(json.dumps({"tierd": tierd, "tables": [TABLE]}))
    with pytest.raises(ConfigError, match="expected http://HOST:PORT"):
        load_settings(json.dumps({"tierd": {**tierd, "url": "head"}}))
