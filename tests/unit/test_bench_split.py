# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench split` on a small made trace and small tables: what it serves, what it reports, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktier.split_controller import SplitController, SplitSettings
from slacktier.window_model import ReadModel
from slacktier_cli.split_study import study
from slacktier_cli.split_study.arms import Rule, run_arm
from slacktier_cli.split_study.steps import half_of
from slacktier_cli.traces import Trace
from slacktier_rowids.models import Hasher, load_hasher

CONFIG = {
    "vocab_size": 600, "eos_token_id": 599, "ple_layer_ids": [2, 5], "ple_embed_dim": 2560,
    "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000, "seed": 5,
}  # fmt: skip
RULE = Rule((0.1, 2.0), ReadModel(300, 20, 2), 1)
SESSIONS, ANSWER, SLOTS = 40, 60, 4


def trace_file(path: Path, seed: int) -> Path:
    """Sessions of a prompt of 20 tokens and an answer of 60."""
    weights = 1 / np.arange(1, 599)
    tokens = np.random.default_rng(seed).choice(598, SESSIONS * (20 + ANSWER), p=weights / weights.sum())
    lengths = np.tile([20, ANSWER], SESSIONS)
    np.savez_compressed(
        path,
        tokens=tokens.astype(np.uint32),
        session_offsets=np.arange(0, len(tokens) + 1, 20 + ANSWER),
        turn_session=np.repeat(np.arange(SESSIONS), 2).astype(np.uint32),
        turn_role=np.tile(np.array([1, 2], np.uint8), SESSIONS),
        turn_start=np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        turn_len=lengths.astype(np.uint32),
        vocab_size=np.int64(600),
    )
    return path


@pytest.fixture(scope="module")
def hasher() -> Hasher:
    return load_hasher(CONFIG)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    return trace_file(tmp_path / "first.npz", 1), trace_file(tmp_path / "second.npz", 2)


def half(path: Path, hasher: Hasher, steps: int = 200) -> Any:
    return half_of(
        path.stem, Trace.load(path), hasher, sessions=SLOTS, steps=steps, seed=1, advance=lambda _count: None
    )


@pytest.fixture
def bench(traces: tuple[Path, Path], tmp_path: Path, slacktier: Any) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on both traces: (exit code, stdout, stderr)."""
    model = tmp_path / "config.json"
    model.write_text(json.dumps(CONFIG))
    return lambda *options: slacktier("bench", "split", *traces, "--model", model, "--sessions", SLOTS, *options)


def test_a_step_holds_one_token_of_each_session_and_the_prompts_before_them(
    traces: tuple[Path, Path], hasher: Hasher
) -> None:
    first = half(traces[0], hasher)
    decoded = [len(decode) for _, decode in first]
    assert first.step_count == 200
    assert set(decoded) == {SLOTS}
    # Sessions last 60 steps: the prompts of three more rounds come within 200.
    assert sum(len(prefill) for prefill, _ in first) == 20 * SLOTS * 4


def test_rows_are_those_of_each_session_on_its_own(traces: tuple[Path, Path], hasher: Hasher) -> None:
    trace, first = Trace.load(traces[0]), half(traces[0], hasher, steps=5)
    alone = {
        tuple(row) for session in trace.sessions() for row in hasher.packed(session.tokens, [0, 80])[:, 0].tolist()
    }
    assert {tuple(row) for row in first.rows[:, 0].tolist()} <= alone


def test_a_cache_of_everything_stalls_less_than_none(traces: tuple[Path, Path], hasher: Hasher) -> None:
    halves = [half(path, hasher) for path in traces]
    none = run_arm(hasher, halves, RULE, {1: 0, 4: 0}, None, lambda _count: None)
    much = run_arm(hasher, halves, RULE, {1: 40_000, 4: 40_000}, None, lambda _count: None)
    assert sum(much.stalls[1]) < sum(none.stalls[1])


def test_the_controller_leaves_a_split_that_starves_the_short_window(traces: tuple[Path, Path], hasher: Hasher) -> None:
    halves = [half(path, hasher, steps=500) for path in traces]
    quick = SplitController({1: 0, 4: 4_000}, SplitSettings(settle_steps=10, measure_steps=40, move_share=0.25))
    moved = run_arm(hasher, halves, RULE, {1: 0, 4: 4_000}, quick, lambda _count: None)
    assert moved.rows[1][1] > 0
    assert sum(moved.rows[1].values()) == 4_000
    assert moved.moves > 0


def test_report_has_both_halves_of_every_start(bench: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = bench("--steps", "100", "--cache-rows", "4000", "--share", "0.5", "--json")
    assert code == 0
    (arm,) = json.loads(out)["arms"]
    assert [one["mix"] for one in arm["halves"]] == ["first", "second"]
    # Too few steps for a move: both arms served the same.
    assert all(one["fixed_ms"] == one["online_ms"] and not one["worse"] for one in arm["halves"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--steps", "9000"], "steps with 4 sessions at once, expected 9000"),
        (["--window", "1"], "1 windows for layers [1, 4]"),
        (["--read", "no-such.yaml"], "no-such.yaml"),
    ],
)
def test_bad_options_are_one_line(bench: Callable[..., tuple[int, str, str]], options: list[str], says: str) -> None:
    code, _, err = bench(*options)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) <= 2


def test_rows_are_dealt_evenly_behind_the_first_layer() -> None:
    assert study.split_of((1, 14, 20), 100, 0.5) == {1: 50, 14: 25, 20: 25}
