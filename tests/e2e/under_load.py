# SPDX-License-Identifier: Apache-2.0
"""load.py from a test: streams that go on while the test breaks something."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from harness import ROOT, SCRIPT

WARM_S: Final = 3.0


@dataclass
class Outcome:
    """Per URL, once the streams have been stopped. errors: seconds since started_s (monotonic), and what was said."""

    started_s: float = 0.0
    completed: dict[str, int] = field(default_factory=dict)
    errors: dict[str, list[tuple[float, str]]] = field(default_factory=dict)

    def all_errors(self) -> list[tuple[float, str]]:
        return sorted(each for found in self.errors.values() for each in found)


@contextmanager
def streams(urls: Sequence[str], count: int = 8) -> Iterator[Outcome]:
    """They run during the block; what came of them is known after it."""
    outcome = Outcome(time.monotonic())
    command = [str(SCRIPT), "exec", sys.executable, str(Path(__file__).with_name("load.py")), str(count), *urls]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        time.sleep(WARM_S)
        outcome.started_s = time.monotonic() - WARM_S
        yield outcome
        said, _ = process.communicate(b"", timeout=180)
    for url, found in json.loads(said).items():
        outcome.completed[url] = found["completed"]
        outcome.errors[url] = [(at, text) for at, text in found["errors"]]
