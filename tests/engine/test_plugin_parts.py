# SPDX-License-Identifier: Apache-2.0
"""The plugin's parts inside each pinned SGLang release, against its own embedding. The checks are in parts/."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from engine_process import RELEASES, environment, python

PARTS = Path(__file__).parent / "parts"
ROOT = Path(__file__).parents[2]
CHECKS = [
    name
    for file in ("rows.py", "faults.py", "binding.py")
    for name in re.findall(r"^def (check_\w+)", (PARTS / file).read_text(encoding="utf-8"), re.MULTILINE)
]


@cache
def answers(release: str) -> dict[str, str]:
    with TemporaryDirectory() as folder:
        answered = Path(folder) / "answers.json"
        variables = environment(release, ROOT / "contracts", ROOT / "engine_patch", ROOT / "tierd")
        done = subprocess.run(
            [python(), "-W", "ignore", PARTS, folder, answered],
            env=variables, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, f"{release}: {done.stderr[-4000:]}"
        found: dict[str, str] = json.loads(answered.read_text(encoding="utf-8"))
        return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("check", CHECKS)
def test_part(release: str, check: str) -> None:
    assert not (found := answers(release)[check]), found
