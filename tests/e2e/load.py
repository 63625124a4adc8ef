# SPDX-License-Identifier: Apache-2.0
"""Streams against serving pods from within the cluster's network, until standard input ends.

usage: load.py COUNT URL...
Prints one JSON object: url -> completed, and [seconds since the start, fault] of each stream that failed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tierd_processes import Streams

if __name__ == "__main__":
    count, urls = int(sys.argv[1]), sys.argv[2:]
    started = time.monotonic()
    running = {url: Streams(url, count=count, tokens=32) for url in urls}
    sys.stdin.read()
    for each in running.values():
        each.stop()
    print(json.dumps({
        url: {"completed": each.completed, "errors": [[at - started, text] for at, text in each.errors]}
        for url, each in running.items()
    }))  # fmt: skip
