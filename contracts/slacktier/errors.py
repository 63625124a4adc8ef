# SPDX-License-Identifier: Apache-2.0
"""The exception tree that every part raises from.

The class decides what a caller does: ConfigError ends a command with exit code 2 before any I/O,
ContractError says that two sides disagree about bytes, TierError says that a tier did not deliver.
"""

from __future__ import annotations


class SlackTierError(Exception):
    """Base of all errors of ours.

    hint  the way out, one sentence, or "" where none is known; printed on a line of its own
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SlackTierError):
    """Bad input, found before anything was read or written."""


class ContractError(SlackTierError):
    """Two sides disagree: format, checksum, row range, table identity."""


class TierError(SlackTierError):
    """A tier failed to deliver: tier, operation, target and errno say which and how."""

    def __init__(self, message: str, *, tier: str, operation: str, target: str, errno: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tier = tier
        self.operation = operation
        self.target = target
        self.errno = errno


class TierUnavailableError(TierError):
    """This replica cannot serve now; another one may."""


class DeadlineMissedError(TierError):
    """The answer did not come before the deadline."""
