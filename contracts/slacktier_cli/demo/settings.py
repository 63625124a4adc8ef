# SPDX-License-Identifier: Apache-2.0
"""Settings of a demo run, read once from the command line and then fixed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slacktier.errors import ConfigError
from slacktier_cli.demo.arms import Arm

BLOCKS_MIN: Final = 1
SESSIONS_MAX: Final = 1024
# Two thirds of a block may go into the first prompts and answers of all users; see limits.py.
BLOCK_SECONDS_MIN: Final = 1.0
BLOCK_SECONDS_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What to run.

    out            directory of report.json, report.html and the tables
    trace          token file (.npz) or conversations (.jsonl); None: the standard library's files
    sessions       users in a closed loop
    blocks         rounds, that is blocks per arm
    block_seconds, history_tokens, turn_tokens   None: chosen by what the disk can do, see limits.py
    output_tokens  an answer is cut to so many; 64 is what the paper's client-side runs generate
    table_bytes    both layers' rows together
    cache_rows     row cache of cached arms, both layers together
    rows_checked_min  if the blocks checked fewer rows, a sweep checks the rest
    """

    out: Path
    arms: tuple[Arm, ...]
    trace: Path | None = None
    sessions: int = 8
    blocks: int = 3
    block_seconds: float | None = None
    history_tokens: int | None = None
    turn_tokens: int | None = None
    output_tokens: int = 64
    tp: int = 4
    seed: int = 1
    table_bytes: int = 1 << 30
    cache_rows: int = 50_000
    slo_pct: float = 1.0
    profile: str = "v41-h200"
    rows_checked_min: int = 1_000_000
    is_fresh: bool = False
    keeps_tables: bool = True

    def __post_init__(self) -> None:
        _within("sessions", self.sessions, 1, SESSIONS_MAX)
        _within("blocks", self.blocks, BLOCKS_MIN, 1000)
        _within("tp", self.tp, 1, 64)
        _within("seed", self.seed, 0, (1 << 48) - 1)
        _within("cache rows", self.cache_rows, 2, 1 << 31)
        _within("output tokens", self.output_tokens, 2, 8192)
        if self.block_seconds is not None:
            _within("block seconds", self.block_seconds, BLOCK_SECONDS_MIN, BLOCK_SECONDS_MAX)
        for name in ("history_tokens", "turn_tokens"):
            if (value := getattr(self, name)) is not None:
                _within(name.replace("_", " "), value, 2, 100_000)
        if not 0 < self.slo_pct <= 1000:
            raise ConfigError(f"slo: {self.slo_pct:g} %, expected a number above 0 and up to 1000")

    @property
    def tables_directory(self) -> Path:
        return self.out / "tables"


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name}: {value:g}, expected {least:g} to {most:g}")
