# SPDX-License-Identifier: Apache-2.0
"""Runs the plugin's parts inside one SGLang release on a CPU, without a server: python parts FOLDER ANSWERS.json

Each function named check_... raises if its part does not hold; the answers say, by name, with what.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before anything of Triton's is imported: the GPU's kernels run here too

import binding
import faults
import rows
import world


def main(folder: Path, answers: Path) -> None:
    world.stage_all(world.write_checkpoint(folder / "checkpoint"), folder / "regions")
    found = {}
    for module in (rows, faults, binding):
        for name, check in vars(module).items():
            if name.startswith("check_"):
                found[name] = _run(check, folder)
    answers.write_text(json.dumps(found))


def _run(check: object, folder: Path) -> str:
    try:
        check(folder)  # type: ignore[operator]
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
