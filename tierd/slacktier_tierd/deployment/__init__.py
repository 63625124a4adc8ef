# SPDX-License-Identifier: Apache-2.0
"""Where work runs: what the head asks of nodes, and Ray, which places and restarts what answers."""
