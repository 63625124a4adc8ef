# SPDX-License-Identifier: Apache-2.0
"""Runs tests/vm inside a guest and brings the results back: `python tests/vm/run.py [PYTEST ARGUMENT...]`.

The exit code is pytest's; 1 if the guest died, did not end in time or ran no test. The level's counts go to the file
that SLACKTIER_LEVEL_REPORT names, as those of every level do.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from guest import Guest, make_disks

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
SHIPPED: Final = ("contracts", "engine_patch", "tierd", "tests", "pyproject.toml", "slacktier.egg-info")
DISKS: Final = (256 << 20, 64 << 20, 64 << 20)
TIMEOUT_S: Final = 510
COMMAND: Final = """
mkdir /src && cd /src && tar -xf /out/source.tar
export PYTHONPATH=contracts:engine_patch:tierd:/src:/opt/slacktier/site SLACKTIER_LEVEL_REPORT=/out/levels
export SLACKTIER_IN_GUEST=1
python3 -m pytest --color=no --durations=5 --timeout 300 -p no:cacheprovider {arguments}
"""


def pack_source(path: Path) -> None:
    """The package, its compiled native library and the tests; what pytest left there is of no use to the guest."""

    def wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if "__pycache__" in entry.name or entry.name.startswith("tests/data") else entry

    with tarfile.open(path, "w") as tar:
        for name in SHIPPED:
            tar.add(ROOT / name, name, filter=wanted)


def passed_and_failed(levels: Path) -> int:
    """How many tests ran."""
    lines = levels.read_text().split("\n") if levels.exists() else []
    return sum(int(line.split()[1]) + int(line.split()[2]) for line in lines if line)


def report(levels: Path) -> None:
    path = os.environ.get("SLACKTIER_LEVEL_REPORT")
    if path and levels.exists():
        with Path(path).open("a") as file:
            file.write(levels.read_text())


def main(arguments: list[str]) -> int:
    image = subprocess.run([HERE / "build-image.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="slacktier-vm-") as work:
        shared = Path(work, "shared")
        shared.mkdir()
        pack_source(shared / "source.tar")
        guest = Guest(Path(image), shared, Path(work), make_disks(Path(work), DISKS))
        code = guest.run(COMMAND.format(arguments=shlex.join(arguments or ["tests/vm"])), TIMEOUT_S)
        levels = shared / "levels"
        report(levels)
        if code is None:
            print(
                f"vm: the guest died or did not end within {TIMEOUT_S} s; its console and emulator said last:",
                file=sys.stderr,
            )
            for log in ("console.log", "emulator.log"):
                print((guest.work / log).read_text(errors="replace")[-2000:], file=sys.stderr)
            return 1
        if passed_and_failed(levels) == 0:
            print("vm: was asked for and ran nothing", file=sys.stderr)
            return code or 1
        return code


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the emulator is ended, too
    sys.exit(main(sys.argv[1:]))
