# SPDX-License-Identifier: Apache-2.0
"""Which sessions are measured, which are learned from, and which judge what was learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slacktier.errors import ConfigError
from slacktier_cli.traces import Trace

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """All sessions in one trace, and what each is for.

    measured  sessions whose miss curves are wanted; they come first in the trace
    fit       sessions that the hot set and the seen-set are learned from
    held_out  measured sessions that the fit does not know
    """

    trace: Trace
    measured: I64
    fit: I64
    held_out: I64

    @classmethod
    def build(cls, trace: Trace, fit: Trace | None, seed: int) -> Corpus:
        """Learns from another trace, or else from a random half of the measured sessions."""
        if not trace.decode_mask.any():
            raise ConfigError("the trace has no assistant turn, so no decode lookup to measure")
        measured = np.arange(trace.session_count)
        if fit is not None:
            others = np.arange(trace.session_count, trace.session_count + fit.session_count)
            return cls(trace.joined(fit), measured, others, measured)
        if trace.session_count < 2:
            raise ConfigError("the trace has one session: none is left to hold out", hint="name others with --fit")
        shuffled = np.random.default_rng([seed, 2]).permutation(measured)
        half = len(shuffled) // 2
        return cls(trace, measured, np.sort(shuffled[:half]), np.sort(shuffled[half:]))
