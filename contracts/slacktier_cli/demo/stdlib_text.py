# SPDX-License-Identifier: Apache-2.0
"""The default workload: sessions of an agent that reads the Python standard library's own files on this machine.

Each session is about one module: a system text, a question, then rounds of an assistant turn (the docstring and code
of what it has just read, and the command that reads on) and a tool turn (the lines which that command prints). All text
but the few connecting words comes from the files, so n-grams repeat as they do in real code reading. The same seed
and the same Python give the same sessions.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from slacktier.errors import ConfigError
from slacktier_cli.demo.rendering import Encode, Message, render
from slacktier_cli.demo.sessions import Session
from slacktier_cli.traces import Role

MODULE_BYTES_MIN: Final = 4_000
MODULE_BYTES_MAX: Final = 120_000
EXCERPT_LINES_MAX: Final = 24
CODE_LINES_MAX: Final = 12
CALLS_MAX: Final = 8
ROUNDS_MIN: Final = 3
ROUNDS_MAX: Final = 6
_LEFT_OUT: Final = frozenset(
    {"test", "tests", "idlelib", "idle_test", "turtledemo", "lib2to3", "site-packages", "dist-packages", "ensurepip",
     "pydoc_data", "encodings", "__pycache__"}
)  # fmt: skip
_SYSTEM: Final = (
    "You are a coding assistant that answers questions about a Python code base. You can run shell commands. "
    "Each answer has a short thought and one command in a fenced block. Read before you answer, quote the lines that "
    "matter, and say when you are done."
)
_QUESTIONS: Final = (
    "How does `{name}` in {path} work? I call it from several threads and want to know what it changes.",
    "Please explain what `{name}` in {path} does with its arguments, and which errors it can raise.",
    "I want to add an option to `{name}` in {path}. Which other parts of the module would that touch?",
    "`{name}` in {path} is slow for large inputs. Find out where the time goes and what could be done.",
)
_FOLLOW_UPS: Final = (
    "Now look at `{name}`, which is close to it.",
    "And `{name}`? I use the two together.",
    "Compare that with `{name}` in the same file, please.",
)


@dataclass(frozen=True, slots=True)
class Subject:
    """A function or class of a module: 1-based lines [line_first, line_end)."""

    name: str
    line_first: int
    line_end: int
    docstring: str
    node: ast.AST


@dataclass(frozen=True, slots=True)
class ModuleText:
    """One source file: path within the library, its lines and what it defines."""

    path: str
    lines: tuple[str, ...]
    subjects: tuple[Subject, ...]


def stdlib_root() -> Path:
    """Where this Python keeps its library's sources."""
    return Path(sysconfig.get_paths()["stdlib"])


def module_paths(root: Path) -> list[Path]:
    """Source files that sessions are about, in a fixed order."""
    found: list[Path] = []
    for directory, below, files in os.walk(root):
        below[:] = [name for name in below if name not in _LEFT_OUT and not name.startswith("config-")]
        found += [Path(directory, name) for name in files if name.endswith(".py")]
    sized = [path for path in sorted(found) if MODULE_BYTES_MIN <= path.stat().st_size <= MODULE_BYTES_MAX]
    if not sized:
        raise ConfigError(f"{root}: no Python sources found", hint="give a workload with --trace FILE")
    return sized


def read_module(root: Path, path: Path) -> ModuleText | None:
    """The module's text and subjects, or None if it defines fewer than two things worth asking about."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    subjects = tuple(_subjects(tree.body, ""))
    if len(subjects) < 2:
        return None
    return ModuleText(f"Lib/{path.relative_to(root).as_posix()}", tuple(text.split("\n")), subjects)


def _subjects(body: list[ast.stmt], prefix: str) -> list[Subject]:
    found = []
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        name, end = prefix + node.name, node.end_lineno or node.lineno
        if end - node.lineno >= 3:
            found.append(Subject(name, node.lineno, end + 1, ast.get_docstring(node) or "", node))
        if isinstance(node, ast.ClassDef):
            found.extend(_subjects(node.body, f"{name}."))
    return found


def _calls(node: ast.AST) -> tuple[str, ...]:
    """Names of what a function or class calls, in no particular order of importance but always the same."""
    names = (ast.unparse(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return tuple(dict.fromkeys(name for name in names if name.replace(".", "").isidentifier()))[:CALLS_MAX]


def stdlib_sessions(count: int, *, seed: int, encode: Encode, root: Path | None = None) -> list[Session]:
    """`count` sessions, each about another module as long as there are enough of them."""
    where = root or stdlib_root()
    paths = module_paths(where)
    rng = np.random.default_rng((seed, len("stdlib")))
    sessions: list[Session] = []
    while len(sessions) < count:
        before = len(sessions)
        for index in rng.permutation(len(paths)):
            if len(sessions) == count:
                break
            module = read_module(where, paths[index])
            if module is not None:
                name = f"{len(sessions)}:{module.path}"
                sessions.append(render(name, _conversation(module, rng), encode))
        if len(sessions) == before:
            raise ConfigError(f"{where}: no module there defines anything", hint="give a workload with --trace FILE")
    return sessions


def _conversation(module: ModuleText, rng: np.random.Generator) -> list[Message]:
    rounds = int(rng.integers(ROUNDS_MIN, ROUNDS_MAX + 1))
    picks = rng.permutation(len(module.subjects))[:rounds]
    subjects = [module.subjects[pick] for pick in picks]
    question = _QUESTIONS[rng.integers(len(_QUESTIONS))]
    messages = [
        Message(Role.SYSTEM, _SYSTEM),
        Message(Role.USER, question.format(name=subjects[0].name, path=module.path)),
        Message(Role.ASSISTANT, f"I will look for the definition first.\n{_grep(subjects[0], module)}"),
        Message(Role.TOOL, _grep_output(module, subjects[0])),
        Message(Role.ASSISTANT, f"It is at line {subjects[0].line_first}. {_read_on(module, subjects[0])}"),
    ]
    for index, subject in enumerate(subjects):
        messages.append(Message(Role.TOOL, _excerpt(module, subject)))
        following = subjects[index + 1] if index + 1 < len(subjects) else None
        messages.append(Message(Role.ASSISTANT, _explanation(module, subject)))
        if following is not None:
            follow_up = _FOLLOW_UPS[rng.integers(len(_FOLLOW_UPS))]
            messages.append(Message(Role.USER, follow_up.format(name=following.name)))
            messages.append(Message(Role.ASSISTANT, f"{_uses(subject)}{_read_on(module, following)}"))
    return messages


def _grep(subject: Subject, module: ModuleText) -> str:
    return f"```bash\ngrep -n '{subject.name.rsplit('.', 1)[-1]}' {module.path}\n```"


def _grep_output(module: ModuleText, subject: Subject) -> str:
    word = subject.name.rsplit(".", 1)[-1]
    hits = [f"{number}:{line}" for number, line in enumerate(module.lines, 1) if word in line]
    return "\n".join(hits[: EXCERPT_LINES_MAX // 2])


def _uses(subject: Subject) -> str:
    calls = _calls(subject.node)
    return f"`{subject.name}` calls {', '.join(f'`{name}`' for name in calls)}. " if calls else ""


def _read_on(module: ModuleText, subject: Subject) -> str:
    lines = f"{subject.line_first},{_excerpt_end(subject) - 1}p"
    return f"I will read `{subject.name}` now.\n```bash\nsed -n '{lines}' {module.path}\n```"


def _excerpt_end(subject: Subject) -> int:
    return min(subject.line_end, subject.line_first + EXCERPT_LINES_MAX)


def _excerpt(module: ModuleText, subject: Subject) -> str:
    return "\n".join(module.lines[subject.line_first - 1 : _excerpt_end(subject) - 1])


def _explanation(module: ModuleText, subject: Subject) -> str:
    code = module.lines[subject.line_first - 1 : subject.line_end - 1][-CODE_LINES_MAX:]
    parts = [f"`{subject.name}`:", subject.docstring, "The part that matters:", "```python", *code, "```"]
    return "\n".join(part for part in parts if part)
