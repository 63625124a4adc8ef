# SPDX-License-Identifier: Apache-2.0
"""Row ids on the CPU, from token ids or text, for the table families that SlackTier serves."""
