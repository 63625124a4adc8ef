# SPDX-License-Identifier: Apache-2.0
"""The golden files, and the hashers that must reproduce them; how they were made: tests/data/README.md."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class Vectors:
    """tokens [T], offsets [S + 1], rows [T, L, C] of one family."""

    tokens: Any
    offsets: Any
    rows: Any

    def sequences(self) -> list[tuple[Any, Any]]:
        """(tokens, rows) of each sequence."""
        ends = self.offsets[1:-1]
        return list(zip(np.split(self.tokens, ends), np.split(self.rows, ends), strict=True))


def load(name: str) -> dict[str, Any]:
    with np.load(DATA / name, allow_pickle=False) as archive:
        return dict(archive)


def engram_vectors(golden: dict[str, Any], prefix: str = "") -> Vectors:
    rows = np.stack([golden[f"{prefix}rows_layer1"], golden[f"{prefix}rows_layer14"]], axis=1)
    return Vectors(golden[f"{prefix}tokens"], golden[f"{prefix}seq_offsets"], rows.astype(np.int64))


def ple_vectors(golden: dict[str, Any]) -> Vectors:
    return Vectors(golden["tokens"], golden["seq_offsets"], golden["rows"][:, None].astype(np.int64))
