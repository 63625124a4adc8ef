# SPDX-License-Identifier: Apache-2.0
"""SGLang's own code and ours on the same tokens: constants, token maps and row ids, bit for bit.

Goal: our ids are those that a server of each pinned release would compute, in every mode in which it computes them.
Method: `tests/oracle/stock` runs the release's unmodified functions; each test compares one model config and release.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_process import RELEASES
from questions import Question

from slacktier_rowids.engram import EngramHasher
from slacktier_rowids.models import load_layout
from slacktier_rowids.ple import PleHasher, PleLayout
from slacktier_rowids.tokenizer import TextTokenizer
from slacktier_rowids.tokenmap import build_token_map

ENGRAM = ["v41-text", "v41-random", "v41-images", "small", "small-2gram", "small-5gram"]
PLE = ["qwen-random", "qwen-text", "ple-4gram-two-layers"]

each_release = pytest.mark.parametrize("release", RELEASES)


@pytest.fixture(scope="session")
def token_maps(questions: dict[str, Question]) -> dict[str, Any]:
    """Tokenizer file -> token map, built here and not taken from the user's cache."""
    paths = {str(question.tokenizer): question.tokenizer for question in questions.values() if question.tokenizer}
    return {name: build_token_map(TextTokenizer.from_file(path)) for name, path in paths.items()}


@pytest.fixture
def ours(questions: dict[str, Question], token_maps: dict[str, Any]) -> Any:
    def hasher(name: str) -> Any:
        layout = load_layout(questions[name].config)
        if isinstance(layout, PleLayout):
            return PleHasher(layout)
        return EngramHasher(layout, token_maps[str(questions[name].tokenizer)])

    return hasher


@each_release
@pytest.mark.parametrize("name", ENGRAM + PLE)
def test_packed_rows_equal_the_releases_rows_in_every_mode(
    release: str, name: str, questions: dict[str, Question], answers: dict[str, dict[str, Any]], ours: Any
) -> None:
    question, stock = questions[name], answers[release]
    rows = ours(name).packed(question.tokens, question.offsets)
    modes = [key for key in stock if key.startswith(f"{name}/rows/")]
    assert len(modes) >= 3
    for key in modes:
        np.testing.assert_array_equal(rows, stock[key], err_msg=key)


@each_release
@pytest.mark.parametrize("name", ENGRAM + PLE)
def test_steps_equal_the_releases_decode(
    release: str, name: str, questions: dict[str, Question], answers: dict[str, dict[str, Any]], ours: Any
) -> None:
    question, hasher = questions[name], ours(name)
    sequences = np.split(question.tokens, question.offsets[1:-1])
    windows = [hasher.window(tokens[: end + 1]) for tokens in sequences for end in range(len(tokens))]
    np.testing.assert_array_equal(hasher.step(windows), answers[release][f"{name}/rows/decode"])


@each_release
@pytest.mark.parametrize("name", ENGRAM + PLE)
def test_constants_equal_the_releases(
    release: str, name: str, questions: dict[str, Question], answers: dict[str, dict[str, Any]]
) -> None:
    constants, stock = load_layout(questions[name].config).constants, answers[release]
    np.testing.assert_array_equal(constants.multipliers, stock[f"{name}/multipliers"])
    np.testing.assert_array_equal(constants.primes.reshape(-1), stock[f"{name}/primes"].reshape(-1))
    np.testing.assert_array_equal(constants.offsets, stock[f"{name}/offsets"])


@each_release
@pytest.mark.parametrize("name", ENGRAM)
def test_token_map_equals_the_releases(
    release: str,
    name: str,
    questions: dict[str, Question],
    answers: dict[str, dict[str, Any]],
    token_maps: dict[str, Any],
) -> None:
    ours = token_maps[str(questions[name].tokenizer)]
    np.testing.assert_array_equal(ours, answers[release][f"{name}/token_map"])


@each_release
@pytest.mark.parametrize("name", PLE)
def test_padded_rows_equal_the_releases(
    release: str, name: str, questions: dict[str, Question], answers: dict[str, dict[str, Any]]
) -> None:
    layout = load_layout(questions[name].config)
    np.testing.assert_array_equal(layout.padded_row_counts, answers[release][f"{name}/padded_rows"])


@each_release
def test_answers_come_from_the_pinned_release(release: str, answers: dict[str, dict[str, Any]]) -> None:
    folder = release.replace("==", "-")
    assert all(f"/{folder}/sglang/srt/" in file for file in answers[release]["files"])
