# SPDX-License-Identifier: Apache-2.0
"""Asks each pinned SGLang release, in its own environment, every question at once; the tests compare the answers."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_process import RELEASES, environment, python
from questions import Question, all_questions

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Question]:
    return {question.name: question for question in all_questions(tmp_path_factory.mktemp("tokenizer"))}


@pytest.fixture(scope="session")
def answers(questions: dict[str, Question], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Release -> answers; the releases run side by side, each importing SGLang once."""
    folder = tmp_path_factory.mktemp("oracle")
    asked = folder / "questions.npz"
    _write(asked, questions)
    with ThreadPoolExecutor() as pool:
        return dict(zip(RELEASES, pool.map(lambda release: _ask(release, asked), RELEASES), strict=True))


def _write(path: Path, questions: dict[str, Question]) -> None:
    arrays = {}
    for name, question in questions.items():
        arrays[f"{name}/tokens"], arrays[f"{name}/offsets"] = question.tokens, question.offsets
    np.savez(path, cases=np.array(json.dumps([question.case() for question in questions.values()])), **arrays)


def _ask(release: str, asked: Path) -> dict[str, Any]:
    answered = asked.with_name(f"{release}.npz")
    command = [python(), "-W", "ignore", HERE / "stock", asked, answered]
    done = subprocess.run(command, env=environment(release), capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, f"{release}: {done.stderr[-4000:]}"
    with np.load(answered, allow_pickle=False) as archive:
        return dict(archive)
