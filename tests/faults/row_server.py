# SPDX-License-Identifier: Apache-2.0
"""A memory node as a process of its own: row_server.py HOST PORT TOKEN_FILE REGION...; prints its port and serves."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from slacktier.tiers import Tier
from slacktier_native.row_link import read_token
from slacktier_native.rows import RowServer
from slacktier_native.sources import SourceSpec


def main() -> None:
    host, port, token_file, *regions = sys.argv[1:]
    specs = [SourceSpec(Tier.DRAM, (Path(region),)) for region in regions]
    with RowServer(specs, read_token(Path(token_file)), host=host, port=int(port)) as server:
        print(server.address[1], flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
