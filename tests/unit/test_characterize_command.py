# SPDX-License-Identifier: Apache-2.0
"""`slacktier characterize` on a small made trace and a small table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slacktier.window import MissCurve
from slacktier_cli.traces import Trace
from slacktier_rowids.models import load_hasher
from slacktier_rowids.seen_set import SeenSet

CONFIG = {
    "vocab_size": 600, "eos_token_id": 599, "ple_layer_ids": [2, 5], "ple_embed_dim": 2560,
    "ngram_size": 3, "heads_per_ngram": 8, "ngram_vocab_size_base": 20_000, "seed": 5,
}  # fmt: skip
SESSIONS = 12
SMALL = ("--sessions", "4", "--rows", "2K,8K,32K", "--threads", "2")


def arrays(seed: int = 3) -> dict[str, Any]:
    """12 sessions of prompt 30, answer 20, tool 30, answer 20; every second one of source `b`."""
    weights = 1 / np.arange(1, 599)
    tokens = np.random.default_rng(seed).choice(598, SESSIONS * 100, p=weights / weights.sum()).astype(np.uint32)
    lengths = np.tile([30, 20, 30, 20], SESSIONS)
    return {
        "tokens": tokens,
        "session_offsets": np.arange(0, len(tokens) + 1, 100),
        "turn_session": np.repeat(np.arange(SESSIONS), 4).astype(np.uint32),
        "turn_role": np.tile(np.array([1, 2, 3, 2], np.uint8), SESSIONS),
        "turn_start": np.concatenate([[0], np.cumsum(lengths)[:-1]]),
        "turn_len": lengths.astype(np.uint32),
        "vocab_size": np.int64(600),
        "session_source": (np.arange(SESSIONS) % 2).astype(np.uint8),
        "source_names": np.array(["a", "b"]),
    }


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.npz"
    np.savez_compressed(path, **arrays())
    return path


@pytest.fixture
def run(slacktier: Any) -> Any:
    """run(*words): (exit code, stdout, stderr) of `slacktier characterize WORDS`."""
    return lambda *words: slacktier("characterize", *words)


@pytest.fixture
def characterize(trace: Path, model: str, run: Any) -> Any:
    """Runs the command on the trace with --json and returns the object."""

    def call(*arguments: object, path: Path = trace) -> dict[str, Any]:
        code, out, err = run(path, "--model", model, *SMALL, "--json", *arguments)
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return call


def test_json_holds_a_curve_per_layer_load_and_policy(characterize: Any) -> None:
    found = characterize("--sessions", "4,8", "--policy", "all", "--rate", "1")
    assert [layer["layer_id"] for layer in found["layers"]] == [1, 4]
    for layer in found["layers"]:
        assert [load["sessions"] for load in layer["loads"]] == [4, 8]
        for load in layer["loads"]:
            assert (load["lookups"], load["decode_lookups"]) == (SESSIONS * 100 * 16, SESSIONS * 40 * 16)
            assert [c["policy"] for c in load["curves"]] == ["lru", "clock", "clock16", "s3fifo", "s3fifo16", "static"]
            lru = load["curves"][0]
            assert lru["hit_rate"] == sorted(lru["hit_rate"])
            assert lru["hit_rate"][-1] <= load["unlimited_hit_rate"]
            # Prompts come first in their sessions, so fewer of their rows were used before.
            assert all(np.array(lru["hit_rate_all"]) < lru["hit_rate"])
            by_order = np.array(list(lru["hit_rate_by_order"].values()))
            assert by_order.mean(axis=0) == pytest.approx(lru["hit_rate"])
            assert (by_order[0] >= by_order[1]).all()


def test_miss_curves_are_what_the_window_rule_takes(characterize: Any) -> None:
    found = characterize("--tp", "4", "--policy", "all", "--rate", "1")
    assert len(found["miss_curves"]) == 2 * 6
    load = found["layers"][0]["loads"][0]
    for entry, curve in zip(found["miss_curves"], load["curves"], strict=False):
        misses = MissCurve(tuple(map(tuple, entry["points"])))
        assert (entry["layer_id"], entry["sessions"], entry["policy"], entry["tp"]) == (1, 4, curve["policy"], 4)
        assert misses.pages(0) == load["uncached_pages"] / 4
        assert misses.pages(8_000 / 4) == pytest.approx(min(curve["pages_per_step"][:2]) / 4)


def test_pages_without_a_cache_are_the_distinct_rows_of_a_step(characterize: Any, trace: Path) -> None:
    found = characterize("--sessions", "12", "--layers", "4", "--rate", "1")
    # With a slot for every session, step s decodes token s of each answer, whatever the shuffle.
    loaded = Trace.load(trace)
    rows = load_hasher(CONFIG).packed(loaded.tokens, loaded.session_offsets)[:, 1]
    decoded = rows[loaded.decode_mask].reshape(SESSIONS, 40, 16)
    distinct = np.mean([len(np.unique(decoded[:, step])) for step in range(40)])
    load = found["layers"][0]["loads"][0]
    assert load["uncached_pages"] == pytest.approx(distinct)
    assert load["distinct_in_steps"]["share"] == pytest.approx(distinct / (SESSIONS * 16))
    assert load["tokens_per_step"] == SESSIONS


def test_coverage_and_rows_never_seen_equal_sets_of_rows(characterize: Any, trace: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez_compressed(other, **arrays(seed=4))
    found = characterize("--layers", "1", "--fit", other, "--rate", "1", "--policy", "lru,static")
    loaded, fitted = Trace.load(trace), Trace.load(other)
    hasher = load_hasher(CONFIG)
    rows = hasher.packed(loaded.tokens, loaded.session_offsets)[:, 0].reshape(SESSIONS, 100, 16)
    seen = set(hasher.packed(fitted.tokens, fitted.session_offsets)[:, 0].ravel().tolist())
    hits = np.zeros(4)
    for session in rows:
        for position in [*range(30, 50), *range(80, 100)]:
            prompt = session[: 30 if position < 50 else 80].ravel()
            now = session[position]
            hits[0] += np.isin(now, prompt).sum()
            hits[1] += np.isin(now, session[:position].ravel()).sum()
            hits[2] += 2 * np.isin(now, prompt).sum() * (position < 50)
            hits[3] += sum(row not in seen for row in now.tolist())
    shares = hits / (SESSIONS * 40 * 16)
    layer = found["layers"][0]
    coverage = layer["coverage"]
    assert [coverage["prompt"], coverage["prompt_and_answer"], coverage["first_turn"]] == pytest.approx(shares[:3])
    assert layer["unseen"]["decode"] == pytest.approx(shares[3])
    # A hot set of everything that the fit used misses exactly what it never saw.
    lossy = layer["loads"][0]["lossy"]
    assert layer["loads"][0]["curves"][1]["hit_rate"][-1] == pytest.approx(1 - shares[3])
    assert lossy["skipped_share"] == pytest.approx(shares[3])
    assert lossy["pages_per_step_skipping"][0] < lossy["pages_per_step"][0]


def test_seen_set_of_the_trace_itself_leaves_nothing_to_skip(characterize: Any, trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.seen"
    written = characterize("--seen-set", out)
    assert written["files"] == [str(out)]
    loaded = Trace.load(trace)
    rows = load_hasher(CONFIG).packed(loaded.tokens, loaded.session_offsets)
    for index, layer in enumerate(SeenSet.load(out).layers):
        assert layer.seen_count == len(np.unique(rows[:, index]))
        assert layer.contains(rows[:, index]).all()
    layer = characterize("--seen", out)["layers"][0]
    assert layer["unseen"]["all"] == 0
    lossy = layer["loads"][0]["lossy"]
    assert lossy["pages_per_step_skipping"] == lossy["pages_per_step"]


def test_exact_run_says_how_far_the_sample_was_off(characterize: Any) -> None:
    found = characterize("--exact", "--policy", "lru")
    error = found["sampling_error"]
    assert found["sampling"]["rate"] == 1
    assert error["sampling"]["rate"] == 0.125
    sampled = characterize("--policy", "lru")
    curves = [[load["curves"][0] for layer in f["layers"] for load in layer["loads"]] for f in (sampled, found)]
    off = [np.abs(np.subtract(a["hit_rate"], b["hit_rate"])).max() for a, b in zip(*curves, strict=True)]
    assert error["points"] == pytest.approx(100 * max(off))


def test_idle_sessions_decode_fewer_tokens_per_step(characterize: Any) -> None:
    busy, idle = (characterize("--layers", "1", "--idle-steps", mean) for mean in (0, 30))
    per_step = [found["layers"][0]["loads"][0]["tokens_per_step"] for found in (busy, idle)]
    assert per_step[0] == 4
    assert per_step[1] < 4


def test_source_filter_measures_only_its_sessions(characterize: Any) -> None:
    found = characterize("--source", "b", "--layers", "1")
    assert found["trace"]["sources"] == ["b"]
    assert found["trace"]["sessions"] == SESSIONS // 2


def test_tables_and_a_note_on_a_foreign_vocabulary(trace: Path, model: str, run: Any) -> None:
    Path(model).write_text(json.dumps({**CONFIG, "vocab_size": 700}))
    code, out, err = run(trace, "--model", model, *SMALL)
    assert (code, err) == (0, "")
    assert "layer 4, 4 sessions: hit rate of decode lookups" in out
    assert "vocabulary of 600, the model's is of 700" in out


@pytest.mark.parametrize(("file_format", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_one_figure_per_layer_and_load(characterize: Any, tmp_path: Path, file_format: str, start: bytes) -> None:
    figures = tmp_path / "figures"
    found = characterize("--plot", figures, "--plot-format", file_format, "--layers", "4")
    assert found["files"] == [str(figures / f"layer4-s4.{file_format}")]
    assert Path(found["files"][0]).read_bytes().startswith(start)


BAD_ARGUMENTS = [
    (("--rows", "1K,1K"), "--rows 1K,1K: expected at most 64 different sizes"),
    (("--rows", "0"), "--rows 0: expected a whole number of rows"),
    (("--rows", "1.5"), "--rows 1.5: expected a whole number of rows"),
    (("--rows", "1e9M"), "--rows 1e9M: expected a whole number of rows"),
    (("--rows", "100"), "100 cache rows at sampling rate 1/8 are 12; fewer than 64 say nothing"),
    (("--rows", "1K,,2K"), "--rows '1K,,2K': expected values separated by commas"),
    (("--sessions", "0"), "--sessions 0: '0' is not a whole number of at least 1"),
    (("--sessions", "13"), "13 sessions at a time, the trace has 12"),
    (("--layers", "2"), "layer 2: no table in this model, whose layers are 1, 4"),
    (("--layers", "1,1"), "--layers 1,1: a number stands there twice"),
    (("--policy", "fifo"), "--policy fifo: expected some of lru, clock"),
    (("--policy", "lru,lru"), "--policy lru,lru: a policy stands there twice"),
    (("--source", "c"), "source c: not in this trace, which has a, b"),
    (("--rate", "2"), "sampling rate 2: expected more than 0 and at most 1"),
    (("--tp", "0"), "--tp 0: expected 1 to"),
    (("--rows", "1000,1001", "--tp", "8"), "--tp 8: two cache sizes are the same for one of so many ranks"),
    (("--threads", "-1"), "--threads -1: expected 1 to"),
    (("--seed", "-1"), "--seed -1: expected 0 to"),
    (("--idle-steps", "nan"), "--idle-steps nan: expected 0 to"),
    (("--plot-format", "gif"), "--plot-format gif: expected svg or png"),
    (("--seen-set", "none/here"), "--seen-set none/here: expected a file in a directory that exists"),
    (("--seen", "none.seen"), "seen-set none.seen: No such file"),
    (("--fit", "none.npz"), "trace none.npz: no such file"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS, ids=[" ".join(case[0]) for case in BAD_ARGUMENTS])
def test_bad_argument_ends_in_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    message: str,
    trace: Path,
    model: str,
    run: Any,
) -> None:
    code, out, err = run(trace, "--model", model, *SMALL, "--json", *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("hint: ")]
    assert (code, out, len(lines)) == (2, "", 1)
    assert lines[0].startswith(f"slacktier: {message}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"turn_role": np.ones(4 * SESSIONS, np.uint8)}, "the trace has no assistant turn"),
        ({"vocab_size": np.int64(100)}, "tokens: id"),
        (
            {"tokens": np.full(100 * SESSIONS, 650, np.uint32), "vocab_size": np.int64(700)},
            "id 650 is outside the vocab",
        ),
    ],
)
def test_bad_trace_ends_in_one_line_and_exit_code_2(
    changed: dict[str, Any],
    message: str,
    trace: Path,
    model: str,
    run: Any,
) -> None:
    np.savez_compressed(trace, **(arrays() | changed))
    code, out, err = run(trace, "--model", model, *SMALL)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_help_shows_examples(run: Any) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "slacktier characterize week2.npz --seen week1.seen" in out
