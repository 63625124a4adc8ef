# SPDX-License-Identifier: Apache-2.0
"""What all levels share: the report per level, hypothesis' settings and seed, where the traces lie, and `--full`.

A test marked `full` takes long and is selected only with `--full` (`make test-LEVEL-full`).
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("level_report", "pytester")

ROOT = Path(__file__).parent.parent

# A deadline per example would measure the machine's other work; pytest-timeout bounds each test.
settings.register_profile("slacktier", deadline=None, print_blob=True)
settings.load_profile("slacktier")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="also the tests that take hours on two cores")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left = [item for item in items if item.get_closest_marker("full")]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Every run draws new examples and says how to draw them again."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(random.SystemRandom().getrandbits(32))
    config.addinivalue_line("markers", "full: takes long; only with --full")


def pytest_report_header(config: pytest.Config) -> str:
    return f"examples: repeat them with --hypothesis-seed={config.option.hypothesis_seed}"


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The directory of recorded traces; tests that need one are skipped where there is none."""
    path = Path(os.environ.get("SLACKTIER_TRACES", ROOT.parent / "shared" / "traces"))
    if not path.is_dir():
        pytest.skip("needs recorded traces; SLACKTIER_TRACES names their directory")
    return path
