# SPDX-License-Identifier: Apache-2.0
"""What runs on a node: staging jobs, memory nodes, and looking at devices. Nothing here knows Ray or HTTP."""
