# SPDX-License-Identifier: Apache-2.0
"""The report per level: what counts, and that a level that ran nothing is red."""

from __future__ import annotations

from collections.abc import Callable

import pytest

RunLevels = Callable[..., tuple[int, str, str]]

PASSES = "def test_passes() -> None:\n    assert True\n"
FAILS = "def test_fails() -> None:\n    assert False\n"
SKIPS = "import pytest\n\ndef test_skips() -> None:\n    pytest.skip('needs a loop device')\n"


@pytest.fixture
def run_levels(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunLevels:
    """Runs pytest, in this process, over a made-up tests/ directory with one file per level."""
    monkeypatch.setenv("SLACKTIER_LEVEL_REPORT", str(pytester.path / "report"))
    pytester.makeini("[pytest]\n")

    def run(levels: dict[str, str], *args: str) -> tuple[int, str, str]:
        for level, text in levels.items():
            (pytester.path / "tests" / level).mkdir(parents=True)
            (pytester.path / "tests" / level / f"test_{level}.py").write_text(text)
        (pytester.path / "tests/conftest.py").write_text('pytest_plugins = ("level_report",)\n')
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *(f"tests/{level}" for level in levels), *args)
        return int(result.ret), result.stdout.str(), (pytester.path / "report").read_text()

    return run


def test_counts_stand_per_level_with_skip_reasons(run_levels: RunLevels) -> None:
    code, out, report = run_levels({"unit": PASSES + SKIPS, "root": PASSES + FAILS})
    assert code == 1
    assert report == "unit 1 0 1\nroot 1 1 0\n"
    assert "skipped in unit: 1 x needs a loop device" in out


@pytest.mark.parametrize("text", [SKIPS, "", "import pytest\npytest.skip('needs torch', allow_module_level=True)\n"])
def test_named_level_that_ran_nothing_is_red(run_levels: RunLevels, text: str) -> None:
    code, out, _ = run_levels({"unit": PASSES, "oracle": text})
    assert code == 1
    assert "level oracle was asked for and ran nothing" in out


def test_level_narrowed_by_keyword_is_not_red(run_levels: RunLevels) -> None:
    code, _, _ = run_levels({"unit": PASSES, "root": SKIPS}, "-k", "passes")
    assert code == 0


def test_file_that_does_not_import_counts_as_failed(run_levels: RunLevels) -> None:
    code, _, report = run_levels({"unit": "import no_such_module\n"})
    assert code != 0
    assert report == "unit 0 1 0\n"
