# SPDX-License-Identifier: Apache-2.0
"""How long blocks are and how much of a session a request carries, chosen so that a block is not all prefill.

The slowest arm decides: both layers from the disk without a cache. Pure arithmetic over what the probe measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from slacktier_cli.demo.sessions import ReplayLimits

BLOCK_SECONDS_LEAST: Final = 10.0
BLOCK_SECONDS_MOST: Final = 30.0
ANSWERS_PER_BLOCK: Final = 3  # that every user should finish on the disk
PREFILL_SHARE: Final = 0.25  # of a block, for the first prompts of all users
HISTORY_TOKENS_LEAST: Final = 16
HISTORY_TOKENS_MOST: Final = 384
TURN_TOKENS_LEAST: Final = 16
TURN_TOKENS_MOST: Final = 192
# A host may keep freshly written files in its memory for a while: a faster disk than this is not counted on.
TRUSTED_PAGES_PER_S: Final = 20_000.0
COMPUTE_STEP_S: Final = 0.015  # between the paper's 11 ms at 8 sessions and 29 ms at 128


@dataclass(frozen=True, slots=True)
class Load:
    """What one step and one prompt token ask of the disk; its rates as the probe measured them."""

    sessions: int
    output_tokens: int
    rows_per_token: int  # of one rank, both layers
    tokens_per_s: float
    pages_per_s: float

    @property
    def trusted_share(self) -> float:
        """Of the measured rates."""
        return min(1.0, TRUSTED_PAGES_PER_S / self.pages_per_s)


def choose_block_seconds(load: Load) -> float:
    """Long enough for some answers of every user on the disk, within bounds that keep a run short."""
    pages_per_s = load.pages_per_s * load.trusted_share
    step_s = max(COMPUTE_STEP_S, load.sessions * load.rows_per_token / pages_per_s + COMPUTE_STEP_S / 2)
    wanted = ANSWERS_PER_BLOCK * load.output_tokens * step_s / (1 - PREFILL_SHARE)
    return round(min(max(wanted, BLOCK_SECONDS_LEAST), BLOCK_SECONDS_MOST), 1)


def choose_limits(load: Load, block_seconds: float, *, history: int | None, turn: int | None) -> ReplayLimits:
    """Token limits; given ones win over chosen ones."""
    affordable = int(PREFILL_SHARE * block_seconds * load.tokens_per_s * load.trusted_share / load.sessions)
    chosen = min(max(affordable, HISTORY_TOKENS_LEAST), HISTORY_TOKENS_MOST)
    return ReplayLimits(
        history_tokens=history or chosen,
        turn_tokens=turn or min(max(chosen // 2, TURN_TOKENS_LEAST), TURN_TOKENS_MOST),
        output_tokens=load.output_tokens,
    )
