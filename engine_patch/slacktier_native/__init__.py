# SPDX-License-Identifier: Apache-2.0
"""The thin Python face of the native core. Imports neither torch nor sglang.

pages   bulk codec for data pages and the test pattern
core    lookups: sources, row cache, one call per step
"""
