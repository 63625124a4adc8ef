# SPDX-License-Identifier: Apache-2.0
"""docs/kubernetes.md as a script: the commands of each section, as a reader would type them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs/kubernetes.md"
_FENCE: Final = re.compile(r"^```(.*?)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """title; on_nodes: commands for a shell on each node with disks; commands: for the reader's own shell."""

    title: str
    on_nodes: str
    commands: str


def sections() -> dict[str, Section]:
    """All sections with commands, in the page's order."""
    found = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        blocks = _FENCE.findall(text)
        on_nodes = "".join(body for kind, body in blocks if kind == "sh on each disk node")
        commands = "".join(body for kind, body in blocks if kind == "sh")
        if commands:
            found[title] = Section(title, on_nodes, commands)
    return found
