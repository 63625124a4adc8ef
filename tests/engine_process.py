# SPDX-License-Identifier: Apache-2.0
"""The environment that runs SGLang on a CPU, for the levels oracle and engine.

It is built by `tests/engine_env/build.sh`, which is a part of the test: where that fails, tests fail; they do not skip.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent / "engine_env"
RELEASES: Final = tuple((HERE / "sglang.txt").read_text(encoding="utf-8").split())


@cache
def engine_env() -> Path:
    built = subprocess.run([HERE / "build.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip())


def python() -> Path:
    return engine_env() / "venv/bin/python"


def environment(release: str, *folders: Path) -> dict[str, str]:
    """Variables of a process that runs one release (`sglang==X.Y.Z`), with `folders` first on its path."""
    path = (*folders, HERE / "stand_ins", engine_env() / release.replace("==", "-"))
    # Without .pyc files each of a server's processes compiles its thousands of modules anew.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "SGLANG_USE_CPU_ENGINE": "1",
    }
