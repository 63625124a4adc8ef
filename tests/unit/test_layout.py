# SPDX-License-Identifier: Apache-2.0
"""What holds of the repository as a whole: places, licence lines, documented targets, commands and their imports."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slacktier_cli.main import COMMANDS, LazyGroup, app

ROOT = Path(__file__).parents[2]
TOP_LEVEL = {
    "operator", "tierd", "engine_patch", "helm", "loadtest", "tests", "contracts", "docs", "mk", ".ci",
    "pyproject.toml", "setup.py", "Makefile", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md",
    ".pre-commit-config.yaml", ".clang-format", ".gitignore",
}  # fmt: skip
SERVERS_AND_MODELS = ("torch", "sglang", "ray", "fastapi", "uvicorn", "kopf", "kubernetes", "matplotlib")
HEAVY_MODULES = (*SERVERS_AND_MODELS, "scipy", "numpy")


def tracked_files() -> list[Path]:
    """What git tracks; a source tree without git is walked, hidden directories and build/ left out."""
    if not (ROOT / ".git").exists():
        files = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
        return [file for file in files if file.parts[0] in TOP_LEVEL and "__pycache__" not in file.parts]
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(name) for name in done.stdout.split("\0") if name]


def make_targets() -> set[str]:
    makefiles = [ROOT / "Makefile", *(ROOT / "mk").glob("*.mk")]
    heads = re.findall(r"^([a-z][a-z0-9 -]*):", "\n".join(file.read_text() for file in makefiles), re.MULTILINE)
    return {target for head in heads for target in head.split()}


def test_top_level_holds_the_agreed_places_only() -> None:
    assert {file.parts[0] for file in tracked_files()} <= TOP_LEVEL


def test_operator_directory_does_not_hide_the_standard_library() -> None:
    assert list((ROOT / "operator").glob("*.py")) == []


@pytest.mark.parametrize("suffix", [".py", ".c", ".h", ".sh", ".mk", ".yaml", ".toml", ".md", ".svg"])
def test_every_source_file_names_its_licence(suffix: str) -> None:
    files = [file for file in tracked_files() if file.suffix == suffix and file.parts[:2] != ("tests", "data")]
    without = [str(f) for f in files if "SPDX-License-Identifier: Apache-2.0" not in (ROOT / f).read_text()[:400]]
    assert without == []


def test_documented_make_targets_exist() -> None:
    texts = [(ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")]
    named = {target for text in texts for target in re.findall(r"(?:^|`)make ([a-z][a-z0-9-]*)", text, re.MULTILINE)}
    assert {"demo", "test"} <= named
    assert named <= make_targets()


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for file in tracked_files():
        if file.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / file).read_text()):
            if not target.startswith(("http://", "https://")) and not (ROOT / file.parent / target).exists():
                broken.append(f"{file}: {target}")
    assert broken == []


@pytest.mark.parametrize("target", ["setup", "test", "demo", "lint", "help"])
def test_help_lists_what_people_call(target: str) -> None:
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(rf"^{target} +\S", listed, re.MULTILINE)


def leaf_commands(command: Any, path: str) -> list[tuple[str, Any]]:
    """The command itself, or what lies below it where it is a group."""
    below = getattr(command, "commands", None)
    if not below:
        return [(path, command)]
    return [leaf for name, inner in below.items() for leaf in leaf_commands(inner, f"{path} {name}")]


@pytest.mark.parametrize("name", COMMANDS)
def test_command_has_help_with_an_example_and_json(name: str) -> None:
    for path, command in leaf_commands(LazyGroup().get_command(None, name), name):
        shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "200"}).stdout.splitlines()
        assert any(line.strip().startswith(f"slacktier {path}") for line in shown), f"no example of `slacktier {path}`"
        options = [option for parameter in command.params for option in parameter.opts]
        assert "--json" in options, f"`slacktier {path}` has no --json"


def test_command_table_names_modules_that_exist() -> None:
    for module_name, _ in COMMANDS.values():
        module = importlib.import_module(module_name)
        assert hasattr(module, "command") or hasattr(module, "app")


def run_python(code: str) -> Any:
    """What a new process prints as JSON in its last line on stdout."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_help_loads_no_part() -> None:
    code = (
        "import json, sys\n"
        "from slacktier_cli.main import app\n"
        "sys.argv = ['slacktier', '--help']\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    loaded = set(run_python(code))
    assert "slacktier_cli.main" in loaded
    assert loaded.isdisjoint(HEAVY_MODULES)
    assert not any(name.startswith("slacktier_cli.commands.") for name in loaded)


def test_only_serve_loads_a_server_before_it_runs_and_no_command_a_model_library() -> None:
    modules = [module for module, _ in COMMANDS.values()]
    code = (
        "import importlib, json, sys\n"
        "new = {}\n"
        f"for module in {modules!r}:\n"
        "    before = set(sys.modules)\n"
        "    importlib.import_module(module)\n"
        f"    new[module] = sorted((set(sys.modules) - before) & set({SERVERS_AND_MODELS!r}))\n"
        "print(json.dumps(new))\n"
    )
    expected: dict[str, list[str]] = {module: [] for module in modules}
    expected["slacktier_cli.commands.serve"] = ["fastapi", "uvicorn"]
    assert run_python(code) == expected


def test_a_full_standard_output_ends_in_one_line_and_exit_code_1() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from slacktier_cli.main import main; main()", "hash", "--tokens", "1"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["slacktier: [Errno 28] No space left on device"]
