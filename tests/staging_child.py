# SPDX-License-Identifier: Apache-2.0
"""A staging in a process of its own, to be killed: `python staging_child.py ROWS TARGET...`.

Prints `ready` when everything is imported, so that the kill falls into the staging and not into Python's start.
"""

from __future__ import annotations

import sys
from pathlib import Path

from region_fixtures import pattern_table

from slacktier_tierd.staging import StageOptions, stage


def main() -> None:
    rows, *targets = sys.argv[1:]
    source = pattern_table(int(rows))
    options = StageOptions(watermark_bytes=8 << 20, threads=2, may_format=True)
    print("ready", flush=True)
    stage(source, [Path(target) for target in targets], options)
    print("complete", flush=True)


if __name__ == "__main__":
    main()
