# SPDX-License-Identifier: Apache-2.0
"""Fits the window rule's read model to measured blocks: T = a + b * (own and earlier pages) + c * later pages.

Two layers at one or two page counts give few points, so the fit is the best non-negative one, found by trying every
set of terms; a term that the points do not tell apart from the others stays zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from slacktier.window import ReadModel

_TIE_US = 1e-6  # fits closer than this are equal; the one with fewer terms is taken


@dataclass(frozen=True, slots=True)
class ReadPoint:
    """One layer in one block: median read time, mean pages in a step that it waits for, mean pages after them."""

    read_ms: float
    queued_pages: float
    later_pages: float


def fit_read_model(points: Sequence[ReadPoint]) -> ReadModel:
    """The read model of one device from at least one point; its measured range is that of queued_pages."""
    times_us = np.array([1000 * point.read_ms for point in points])
    terms = np.array([(1.0, point.queued_pages, point.later_pages) for point in points])
    best_us, best = math.inf, np.zeros(3)
    for size in (1, 2, 3):
        for columns in combinations(range(3), size):
            found = _solve(terms, times_us, columns)
            if found is not None:
                rmse_us = float(np.sqrt(np.mean((terms @ found - times_us) ** 2)))
                if rmse_us < best_us - _TIE_US:
                    best_us, best = rmse_us, found
    queued = [point.queued_pages for point in points]
    a_us, b_us, c_us = (float(value) for value in best)
    return ReadModel(a_us, b_us, c_us, pages_min=min(queued), pages_max=max(queued), rmse_us=best_us)


def _solve(
    terms: npt.NDArray[np.float64], times_us: npt.NDArray[np.float64], columns: tuple[int, ...]
) -> npt.NDArray[np.float64] | None:
    """Least squares over some of the terms, or None if the points do not determine them or one comes out negative."""
    chosen, _, rank, _ = np.linalg.lstsq(terms[:, columns], times_us, rcond=None)
    if rank < len(columns) or (chosen < 0).any():
        return None
    found = np.zeros(3)
    found[list(columns)] = chosen
    return found
