# SPDX-License-Identifier: Apache-2.0
"""Names of the Locust messages between desk and seats, and what they carry."""

from __future__ import annotations

from typing import Final

CLAIM: Final = "slacktier-claim"  # seat: {claim}; a user is there and wants sessions
WORK: Final = "slacktier-work"  # desk: {claim, index, script}; index -1: there is none left
GO: Final = "slacktier-go"  # desk: {}; every user has its sessions
PROGRESS: Final = "slacktier-progress"  # seat: {done, failed, tpot_ms, tpots}; since the last one
FINISHED: Final = "slacktier-finished"  # seat: {index, finished}; a user is through
END: Final = "slacktier-end"  # desk: {}; every user is through
LOAD: Final = "slacktier-load"  # seat: a records.GeneratorLoad
