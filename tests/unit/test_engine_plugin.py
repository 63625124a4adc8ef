# SPDX-License-Identifier: Apache-2.0
"""What SGLang calls in each of its processes: nothing without a configuration, no server with one that cannot work."""

from __future__ import annotations

import logging
import subprocess
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

import pytest

from slacktier.errors import ConfigError
from slacktier_engine import plugin, supported

VALID = '{"tables": [{"layer": 1, "sources": [{"tier": "nvme", "paths": ["/tables/l1.region"]}]}]}'


def server_args(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{"pp_size": 1, "attn_cp_size": 1, "device": "cuda", "load_format": "auto", "speculative_algorithm": None}
        | changed
    )


def test_sglang_finds_the_plugin_by_its_entry_point() -> None:
    found = entry_points(group="sglang.srt.plugins", name="slacktier")
    assert [point.load() for point in found] == [plugin.register]


def test_importing_the_plugin_loads_nothing_heavy() -> None:
    heavy = {"torch", "sglang", "pydantic", "numpy"}
    code = f"import sys, slacktier_engine.plugin; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_without_a_configuration_the_engine_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(plugin.CONFIG_VARIABLE, raising=False)
    with caplog.at_level(logging.INFO, "slacktier"):
        plugin.register()
    assert [record.message for record in caplog.records] == [
        "slacktier: SLACKTIER_CONFIG is not set, so this engine keeps its own tables"
    ]


def test_a_configuration_that_cannot_work_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SystemExit, since the engine swallows every Exception of a plugin and serves on with its own table."""
    monkeypatch.setenv(plugin.CONFIG_VARIABLE, "/no/such/file.yaml")
    with pytest.raises(SystemExit) as caught:
        plugin.register()
    assert caught.value.code == 2
    assert "this server cannot use its tier: /no/such/file.yaml: No such file" in capsys.readouterr().err


def test_a_fault_of_our_own_ends_the_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.CONFIG_VARIABLE, VALID)

    def fail(_: object) -> str:
        raise RuntimeError("on purpose")

    monkeypatch.setattr(supported, "check_version", fail)
    with pytest.raises(SystemExit) as caught:
        plugin.register()
    assert caught.value.code == 1


def test_an_engine_that_was_not_tested_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supported, "version", lambda _: "0.6.0")
    with pytest.raises(ConfigError, match=r"sglang 0\.6\.0: expected 0\.5\.22 or 0\.5\.23"):
        supported.check_version()
    assert supported.check_version(("0.6.0",)) == "0.6.0"


@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"pp_size": 2}, "--pp-size 2"),
        ({"attn_cp_size": 2}, "--attn-cp-size 2"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap True"),
        ({"enable_pdmux": True}, "--enable-pdmux True"),
        ({"enable_nvidia_megakernel": True}, "--enable-nvidia-megakernel True"),
        ({"weight_loader_disable_mmap": True}, "--weight-loader-disable-mmap True"),
        ({"weight_loader_prefetch_checkpoints": True}, "--weight-loader-prefetch-checkpoints True"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE"),
        ({"load_format": "runai_streamer"}, "--load-format runai_streamer"),
        ({"cuda_graph_backend_prefill": "breakable"}, "--cuda-graph-backend-prefill breakable"),
    ],
)
def test_a_flag_that_cannot_work_is_refused_by_its_name(changed: dict[str, object], flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        supported.check_flags(server_args(**changed))
    assert str(caught.value).startswith(flag)
    assert caught.value.hint


def test_flags_that_work_are_let_through() -> None:
    supported.check_flags(server_args(speculative_algorithm="DSPARK", enable_hierarchical_cache=True))
