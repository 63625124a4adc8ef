# SPDX-License-Identifier: Apache-2.0
"""A tier in a process of its own, to be killed: python row_server.py TOKEN_FILE PORT REGION..., prints its port."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slacktier.tiers import Tier
from slacktier_native.rows import RowServer
from slacktier_native.sources import SourceSpec


@contextmanager
def row_server(token_file: Path, regions: list[Path], port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """(process, port) of a row server that answers; killed at the end if it still runs."""
    command = [sys.executable, __file__, str(token_file), str(port), *map(str, regions)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def main(token_file: str, port: str, *regions: str) -> None:
    sources = [SourceSpec(Tier.DRAM, (Path(region),)) for region in regions]
    with RowServer(sources, Path(token_file).read_bytes().strip(), port=int(port)) as server:
        print(server.address[1], flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
