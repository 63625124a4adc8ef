# SPDX-License-Identifier: Apache-2.0
"""`.ci/run`: what it calls, how it counts, and when it is red. `make` is a stand-in that plays a step's part."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKE_MAKE = """#!/usr/bin/env bash
case $1 in
{cases}
setup | lint) ;;
test*) echo "$1 2 0 1" >>"$SLACKTIER_LEVEL_REPORT" ;;
esac
"""


def run_ci(root: Path, cases: str = "", levels: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """(exit code, lines printed) of .ci/run in a made-up clone whose mk/ holds these levels."""
    for directory in ("bin", "mk", ".ci"):
        (root / directory).mkdir()
    (root / "bin/make").write_text(FAKE_MAKE.replace("{cases}", cases))
    (root / "bin/make").chmod(0o755)
    (root / "mk/system-packages.sh").write_text("#!/usr/bin/env bash\n")
    (root / "mk/system-packages.sh").chmod(0o755)
    for level in levels:
        (root / f"mk/{level}.mk").write_text(f"test-{level}: setup ## A level\n\ttrue\n")
    shutil.copy(ROOT / "Makefile", root)
    shutil.copy(ROOT / ".ci/run", root / ".ci/run")
    env = {"PATH": f"{root}/bin:/usr/bin:/bin"}
    done = subprocess.run(["bash", ".ci/run"], cwd=root, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_counts_of_all_levels_stand_alone_in_the_last_line(tmp_path: Path) -> None:
    code, lines = run_ci(tmp_path)
    assert code == 0
    assert lines[-1] == "8 passed, 0 failed, 4 skipped"


def test_level_in_mk_is_run_and_counted(tmp_path: Path) -> None:
    code, lines = run_ci(tmp_path, levels=("root",))
    assert code == 0
    assert lines[-1] == "10 passed, 0 failed, 5 skipped"
    assert any(line.startswith("test-root ") for line in lines)


def test_level_that_ran_nothing_is_red(tmp_path: Path) -> None:
    code, lines = run_ci(tmp_path, 'test) echo "unit 0 0 3" >>"$SLACKTIER_LEVEL_REPORT" ;;')
    assert code == 1
    assert lines[-1] == "6 passed, 1 failed, 6 skipped"
    assert any(line.startswith("test ") and line.endswith("ran nothing") for line in lines)


def test_step_that_breaks_outside_a_test_is_red(tmp_path: Path) -> None:
    code, lines = run_ci(tmp_path, "lint) exit 3 ;;")
    assert code == 1
    assert lines[-1] == "8 passed, 1 failed, 4 skipped"


def test_failed_tests_are_counted_once(tmp_path: Path) -> None:
    code, lines = run_ci(tmp_path, 'test) echo "unit 5 2 0" >>"$SLACKTIER_LEVEL_REPORT"; exit 1 ;;')
    assert code == 1
    assert lines[-1] == "11 passed, 2 failed, 3 skipped"
