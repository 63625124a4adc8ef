# SPDX-License-Identifier: Apache-2.0
"""Prints the exact versions, in this environment, of everything that some extras need: the images' pins.

usage: constraints.py EXTRA... >constraints.txt
"""

from __future__ import annotations

import sys
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PROJECT = "slacktier"


def closure(extras: list[str]) -> dict[str, str]:
    """Distribution name -> version."""
    found: dict[str, str] = {}
    todo = [(_PROJECT, frozenset(extras))]
    seen = set(todo)
    while todo:
        name, wanted = todo.pop()
        found[name] = metadata.version(name)
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in wanted or {""}):
                continue
            needs = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if needs not in seen:
                seen.add(needs)
                todo.append(needs)
    del found[_PROJECT]
    return found


if __name__ == "__main__":
    print("# The images' pins: what was tested together. Written by constraints.py.")
    for name, version in sorted(closure(sys.argv[1:]).items()):
        print(f"{name}=={version}")
