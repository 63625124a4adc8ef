# SPDX-License-Identifier: Apache-2.0
"""A trace as a server's batches: what is decoded in each step, and what is prefilled before it. numpy only.

`slots` sessions run side by side. Each round, a slot whose next token is not an assistant's prefills up to one that
is; then every slot decodes one token. A finished session is replaced by the next of a seeded shuffle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError

Positions = npt.NDArray[np.int64]
BEFORE_START: Final = -1


@dataclass(frozen=True)
class TokenStream:
    """All sessions of a trace, concatenated.

    tokens   [N]; starts [N] first position of each token's session
    decoded  [N] bool: produced by decoding
    """

    tokens: npt.NDArray[np.int64]
    starts: Positions
    decoded: npt.NDArray[np.bool_]
    offsets: Positions

    @classmethod
    def of(
        cls, tokens: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64], decoded: npt.NDArray[np.bool_]
    ) -> TokenStream:
        """From a trace's arrays (slacktier_cli.traces.Trace)."""
        return cls(tokens.astype(np.int64), np.repeat(offsets[:-1], np.diff(offsets)), decoded, offsets)

    def windows(self, positions: Positions, size: int) -> npt.NDArray[np.int64]:
        """The last `size` tokens up to each position, oldest first, BEFORE_START where a session is younger."""
        at = positions[:, None] - np.arange(size - 1, -1, -1)
        return np.where(at >= self.starts[positions][:, None], self.tokens[np.maximum(at, 0)], BEFORE_START)


@dataclass(frozen=True)
class Workload:
    """warm     positions looked up before measuring, in order of time
    decode   [S, B] positions decoded in each step
    prefill  [S] positions prefilled before each step
    """

    warm: Positions
    decode: Positions
    prefill: tuple[Positions, ...]


def rounds(stream: TokenStream, slots: int, seed: int) -> Iterator[tuple[list[Positions], Positions]]:
    """(prefilled ranges, decoded positions [slots]) per round, until the sessions run out."""
    order = iter(np.random.default_rng(seed).permutation(len(stream.offsets) - 1))
    decodes = np.flatnonzero(stream.decoded)
    following = np.append(decodes, len(stream.tokens))[np.searchsorted(decodes, np.arange(len(stream.tokens) + 1))]
    at, end = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    while True:
        prefilled: list[Positions] = []
        for slot in range(slots):
            while at[slot] == end[slot] or not stream.decoded[at[slot]]:
                if at[slot] == end[slot]:
                    session = next(order, None)
                    if session is None:
                        return
                    at[slot], end[slot] = stream.offsets[session], stream.offsets[session + 1]
                    continue
                until = min(following[at[slot]], end[slot])
                prefilled.append(np.arange(at[slot], until))
                at[slot] = until
        yield prefilled, at.copy()
        at += 1


def build_workload(stream: TokenStream, *, slots: int, steps: int, warm_tokens: int, seed: int = 1) -> Workload:
    """Rounds until warm_tokens were looked up, then `steps` rounds to measure; raises ConfigError if the trace ends."""
    warm: list[Positions] = []
    decode: list[Positions] = []
    prefill: list[Positions] = []
    warmed = 0
    for prefilled, decoded in rounds(stream, slots, seed):
        if warmed < warm_tokens:
            warm += [*prefilled, decoded]
            warmed += sum(map(len, prefilled)) + slots
            continue
        decode.append(decoded)
        prefill.append(np.concatenate([np.empty(0, np.int64), *prefilled]))
        if len(decode) == steps:
            return Workload(np.concatenate(warm), np.stack(decode), tuple(prefill))
    raise ConfigError(
        f"trace of {len(stream.tokens)} tokens ends after {len(decode)} of {steps} steps of {slots} tokens",
        hint="warm up with fewer tokens",
    )
