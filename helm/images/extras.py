# SPDX-License-Identifier: Apache-2.0
"""Prints what an extra of pyproject.toml needs, one requirement per line.

An image's layer of them is built before the package itself is copied in, and stays while only our own code changes.

usage: extras.py pyproject.toml EXTRA...
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """The base requirements and those of the extras; an extra that names others of this project is followed."""
    found = list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", requirement)
            found += requirements(project, own[1].split(",")) if own else [requirement]
    return sorted(set(found))


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    print("\n".join(requirements(tomllib.loads(Path(path).read_text(encoding="utf-8"))["project"], names)))
