# SPDX-License-Identifier: Apache-2.0
"""A memory node: one process that holds one table in memory and serves its rows to bound instances."""
