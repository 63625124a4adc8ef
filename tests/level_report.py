# SPDX-License-Identifier: Apache-2.0
"""Pytest plugin: counts tests per level, prints skips with their reasons, and fails a level that ran nothing.

A level is a directory under tests/. One that was named on the command line and of which every test was skipped,
or that holds no test, makes the session fail: asking for a level and running nothing of it must not look green.
SLACKTIER_LEVEL_REPORT names a file to which each level's `level passed failed skipped` is appended, for `.ci/run`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

UNIT_SECONDS_MAX: Final = 2.0


@dataclass
class Level:
    """What one level's tests came to."""

    passed: int = 0
    failed: int = 0
    skip_reasons: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def skipped(self) -> int:
        return self.skip_reasons.total()

    @property
    def ran(self) -> int:
        return self.passed + self.failed


def level_of(nodeid: str) -> str:
    """`unit` of `tests/unit/test_page.py::test_x`; what lies outside tests/ belongs to no level: ""."""
    parts = nodeid.split("::")[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else ""


def named_levels(args: Iterable[str], tests_dir: Path) -> list[str]:
    """The levels whose whole directory was asked for."""
    paths = [Path(arg).resolve() for arg in args if "::" not in arg]
    return [path.name for path in paths if path.parent == tests_dir]


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped; the place is left out, so that equal reasons add up."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return getattr(report, "wasxfail", "") or "no reason given"


class LevelReport:
    """Collects the reports of one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.levels: dict[str, Level] = {}
        self.slow: list[str] = []
        narrowed = config.option.keyword or config.option.markexpr
        self.named = [] if narrowed else named_levels(config.args, config.rootpath / "tests")
        for name in self.named:
            self.levels[name] = Level()

    def _level(self, nodeid: str) -> Level:
        return self.levels.setdefault(level_of(nodeid), Level())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        level = self._level(report.nodeid)
        level.seconds += report.duration
        if report.skipped:
            level.skip_reasons[skip_reason(report)] += 1
        elif report.failed:
            level.failed += 1
        elif report.when == "call":
            level.passed += 1
            if level_of(report.nodeid) == "unit" and report.duration > UNIT_SECONDS_MAX:
                self.slow.append(f"{report.nodeid} took {report.duration:.1f} s")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._level(report.nodeid).failed += 1
        elif report.skipped:
            self._level(report.nodeid).skip_reasons[skip_reason(report)] += 1

    def ran_nothing(self) -> list[str]:
        return [name for name in self.named if self.levels[name].ran == 0]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        path = os.environ.get("SLACKTIER_LEVEL_REPORT")
        if path:
            lines = [f"{name or 'other'} {v.passed} {v.failed} {v.skipped}\n" for name, v in self.levels.items()]
            with Path(path).open("a") as file:
                file.writelines(lines)
        if self.ran_nothing() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.option.collectonly or not self.levels:
            return
        write = terminalreporter.write_line
        terminalreporter.section("tests per level")
        write(f"{'level':<12}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
        for name, level in self.levels.items():
            row = f"{name or 'other':<12}{level.passed:>8}{level.failed:>8}{level.skipped:>9}{level.seconds:>9.1f}"
            write(row, red=bool(level.failed))
        for name, level in self.levels.items():
            for reason, count in level.skip_reasons.most_common():
                write(f"skipped in {name or 'other'}: {count} x {reason}")
        for line in self.slow:
            write(f"slow: {line}; a unit test gets {UNIT_SECONDS_MAX:.0f} s", yellow=True)
        for name in self.ran_nothing():
            write(f"level {name} was asked for and ran nothing", red=True)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LevelReport(config), "slacktier-levels")
