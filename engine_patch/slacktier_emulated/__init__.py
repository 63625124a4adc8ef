# SPDX-License-Identifier: Apache-2.0
"""The emulated engine: real lookups, compute replaced by waiting. It says everywhere that it is emulated."""
