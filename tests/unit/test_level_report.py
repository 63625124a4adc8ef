# SPDX-License-Identifier: Apache-2.0
"""The report per level: what counts, and that a level that ran nothing is red."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PASSES = "def test_passes() -> None:\n    assert True\n"
FAILS = "def test_fails() -> None:\n    assert False\n"
SKIPS = "import pytest\n\ndef test_skips() -> None:\n    pytest.skip('needs a loop device')\n"


def run_pytest(root: Path, levels: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over a made-up tests/ directory with one file per level, with our plugin only."""
    tests = root / "tests"
    for level, text in levels.items():
        (tests / level).mkdir(parents=True)
        (tests / level / f"test_{level}.py").write_text(text)
    shutil.copy(TESTS / "level_report.py", tests)
    (tests / "conftest.py").write_text('pytest_plugins = ("level_report",)\n')
    (root / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", *args]
    env = {"PATH": "/usr/bin:/bin", "SLACKTIER_LEVEL_REPORT": str(root / "report"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


def test_counts_stand_per_level_with_skip_reasons(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, {"unit": PASSES + SKIPS, "root": PASSES + FAILS}, "tests/unit", "tests/root")
    assert done.returncode == 1
    assert (tmp_path / "report").read_text() == "unit 1 0 1\nroot 1 1 0\n"
    assert "skipped in unit: 1 x needs a loop device" in done.stdout


@pytest.mark.parametrize("text", [SKIPS, "", "import pytest\npytest.skip('needs torch', allow_module_level=True)\n"])
def test_named_level_that_ran_nothing_is_red(tmp_path: Path, text: str) -> None:
    done = run_pytest(tmp_path, {"unit": PASSES, "oracle": text}, "tests/unit", "tests/oracle")
    assert done.returncode == 1
    assert "level oracle was asked for and ran nothing" in done.stdout


def test_level_narrowed_by_keyword_is_not_red(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, {"unit": PASSES, "root": SKIPS}, "tests/unit", "tests/root", "-k", "passes")
    assert done.returncode == 0


def test_file_that_does_not_import_counts_as_failed(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, {"unit": "import no_such_module\n"}, "tests/unit")
    assert done.returncode != 0
    assert (tmp_path / "report").read_text() == "unit 0 1 0\n"
