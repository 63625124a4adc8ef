# SPDX-License-Identifier: Apache-2.0
"""What all parts of SlackTier agree on: bytes, names, models and the window rule."""

__version__ = "0.1.0"
