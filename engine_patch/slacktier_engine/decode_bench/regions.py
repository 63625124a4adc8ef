# SPDX-License-Identifier: Apache-2.0
"""Sources that need a place: regions of the table's first rows on block devices, in files, behind a row server."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError, TierUnavailableError
from slacktier.tiers import Tier
from slacktier_engine.decode_bench.compute import LOOKUP_LAYERS
from slacktier_engine.decode_bench.table import BenchTable
from slacktier_native.memory_table import MemoryTable
from slacktier_native.row_link import RowsSpec
from slacktier_native.sources import AnySource, MemorySpec, SourceSpec

REGION_ROWS: Final = 8_000_010  # of each layer: 2.0 GiB, whole pages

_SERVE: Final = """
import sys, threading
from pathlib import Path
from slacktier.tiers import Tier
from slacktier_native.rows import RowServer
from slacktier_native.sources import SourceSpec
token, *regions = map(Path, sys.argv[1:])
server = RowServer([SourceSpec(Tier.DRAM, (path,)) for path in regions], token.read_bytes().strip())
print(server.address[1], flush=True)
sys.stdin.read()
server.close()
"""


class RegionSources:
    """places  zram, disk, tcp -> a directory for two files, or two block devices joined by a comma."""

    def __init__(self, table: BenchTable, places: Mapping[str, str], row_count: int = REGION_ROWS) -> None:
        self._table, self._places, self.row_count = table, places, row_count
        self._tables: list[MemoryTable] = []
        self._opened: dict[str, tuple[list[AnySource], list[Path]]] = {}
        self._server: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="slacktier-bench-")

    def memory(self) -> list[AnySource]:
        """The same rows in memory, to warm a cache with."""
        if not self._tables:
            self._tables = [self._table.first_rows(layer_id, self.row_count) for layer_id in LOOKUP_LAYERS]
        return [MemorySpec(table) for table in self._tables]

    def get(self, name: str) -> list[AnySource]:
        """Sources of layers 1 and 14; written when first asked for. Raises ConfigError without a place for it."""
        if name not in self._opened:
            paths = self._write(name)
            files: list[AnySource] = [SourceSpec(Tier.NVME, (path,)) for path in paths]
            self._opened[name] = (self._serve(paths) if name == "tcp" else files, paths)
        return self._opened[name][0]

    def _write(self, name: str) -> list[Path]:
        if name not in self._places:
            raise ConfigError(f"source {name}: no place for its regions", hint=f"--region {name}=DIRECTORY or devices")
        self.memory()
        place = Path(self._places[name])
        if place.is_dir():
            paths = [place / f"slacktier-bench-{name}-{layer_id}.region" for layer_id in LOOKUP_LAYERS]
        else:
            paths = [Path(part) for part in self._places[name].split(",")]
        if len(paths) != len(LOOKUP_LAYERS):
            raise ConfigError(f"source {name} at {self._places[name]}: expected a directory or two devices")
        for table, path in zip(self._tables, paths, strict=True):
            table.write_region(path)
        return paths

    def _serve(self, paths: list[Path]) -> list[AnySource]:
        token = Path(self._folder.name) / "token"
        token.write_text(secrets.token_hex(32), encoding="ascii")
        command = [sys.executable, "-c", _SERVE, str(token), *map(str, paths)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        port = self._server.stdout.readline().strip() if self._server.stdout else ""
        if not port.isdigit():
            raise TierUnavailableError(
                "row server did not start", tier=Tier.TCP.value, operation="start", target="tcp", errno=0
            )
        return [RowsSpec("127.0.0.1", int(port), token, layer_id) for layer_id in LOOKUP_LAYERS]

    def close(self) -> None:
        """End the row server and remove the files that were made."""
        if self._server is not None:
            self._server.communicate(timeout=30)
        for _, paths in self._opened.values():
            for path in paths:
                if path.is_file():
                    path.unlink()
        self._folder.cleanup()
