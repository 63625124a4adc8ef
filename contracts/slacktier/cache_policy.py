# SPDX-License-Identifier: Apache-2.0
"""How the row cache chooses the row that goes."""

from __future__ import annotations

from enum import StrEnum


class CachePolicy(StrEnum):
    """Within each set of 16 ways.

    S3-FIFO keeps new rows out of the way of those that were used again. It pays where the cache is small for its load;
    `slacktier characterize` says by how much (its policies clock16 and s3fifo16).
    """

    CLOCK = "clock"
    S3FIFO = "s3fifo"
