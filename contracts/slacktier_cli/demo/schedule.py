# SPDX-License-Identifier: Apache-2.0
"""Which arm runs when: every round runs each arm once, in an order of its own, so that drift hits all arms alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slacktier_cli.demo.arms import Arm


@dataclass(frozen=True, slots=True)
class Block:
    """One arm's turn in one round."""

    round_index: int
    arm: Arm


def shuffled_blocks(arms: Sequence[Arm], rounds: int, *, seed: int) -> tuple[Block, ...]:
    """rounds x arms blocks; within a round the arms are in random order, repeatable by seed."""
    rng = np.random.default_rng((seed, len("blocks")))
    return tuple(
        Block(round_index, arms[index]) for round_index in range(rounds) for index in rng.permutation(len(arms))
    )
