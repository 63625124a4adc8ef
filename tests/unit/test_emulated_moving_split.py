# SPDX-License-Identifier: Apache-2.0
"""The online split in the engine: stalls of decode steps move cache rows, within the budget, and control calls rule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from emulated_support import ScriptedCore, VirtualClock, scripted_engine, submission, write_tables

from slacktier.errors import ConfigError
from slacktier.split_controller import SplitSettings
from slacktier_emulated.control import parse_control
from slacktier_emulated.engine import Engine
from slacktier_emulated.moving_split import MovingSplit

QUICK = SplitSettings(settle_steps=4, measure_steps=16, move_share=0.25)


@dataclass(slots=True)
class CachedCore(ScriptedCore):
    """Layer 1's rows come the sooner the more of them are cached."""

    def set_cache_rows(self, layer_index: int, rows: int) -> None:
        ScriptedCore.set_cache_rows(self, layer_index, rows)
        if layer_index == 0:
            self.arrivals_us[0] = max(0.0, 1000.0 - rows / 20)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return write_tables(tmp_path_factory.mktemp("tables"))


@pytest.fixture
def engine(tables: dict[int, Path]) -> Engine:
    core = CachedCore(VirtualClock(), arrivals_us=[1000.0, 0.0])
    made = scripted_engine(core, tables)
    made.control(parse_control({"layers": [{"layer_id": 14, "cache_rows": 2000}]}))
    return made


def serve(engine: Engine, steps: int) -> None:
    engine.submit(submission(1, prompt=4, answer=steps))
    while (prepared := engine.prepare()) is not None:
        record = engine.begin(prepared, lambda: None)
        engine.scheduler.complete(prepared.batch)
        engine.finish(prepared, record)


def rows(engine: Engine) -> dict[int, int]:
    return {layer["layer_id"]: layer["cache_rows"] for layer in engine.status()["layers"]}


def test_rows_move_to_the_layer_that_steps_wait_for(engine: Engine) -> None:
    engine.split = MovingSplit(rows(engine), QUICK)
    serve(engine, 300)
    assert rows(engine)[1] >= 1000
    assert sum(rows(engine).values()) == 2000
    assert engine.status()["online_split"]["moves"] >= 2


def test_what_shrinks_goes_first(engine: Engine) -> None:
    engine.split = MovingSplit(rows(engine), QUICK)
    serve(engine, 60)
    core = engine.core
    assert isinstance(core, CachedCore)
    moved = [call for call in core.calls if call.startswith("cache")][1:3]
    assert moved == ["cache 1 1500", "cache 0 500"]


def test_without_it_nothing_moves(engine: Engine) -> None:
    serve(engine, 100)
    assert rows(engine) == {1: 0, 14: 2000}
    assert engine.status()["online_split"] is None


def test_control_switches_it_on_and_off(engine: Engine) -> None:
    assert engine.control(parse_control({"online_split": True}))["online_split"] == {"moves": 0}
    assert engine.control(parse_control({"online_split": False}))["online_split"] is None


def test_a_size_set_by_hand_starts_it_anew(engine: Engine) -> None:
    engine.control(parse_control({"online_split": True}))
    before = engine.split
    engine.control(parse_control({"layers": [{"layer_id": 1, "cache_rows": 500}]}))
    assert engine.split is not before
    assert rows(engine) == {1: 500, 14: 2000}


def test_nothing_to_move_is_refused_and_changes_nothing(engine: Engine) -> None:
    engine.control(parse_control({"layers": [{"layer_id": 14, "cache_rows": 0}]}))
    with pytest.raises(ConfigError, match="rows to move"):
        engine.control(parse_control({"online_split": True}))
    assert engine.status()["online_split"] is None
