# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench decode`: one rank of a V4.1-like decode step in a captured graph, with and without lookups.

workload   trace -> decode steps and the prefills between them (numpy only)
cells      what is measured: parsed from the command line (standard library only)
table      the rows, twice: as the engine's pinned table and as SlackTier's pages
stock      the engine's own kernels, loaded by path
compute    40 layers of GEMMs with weight traffic, as many as the windows ask for
arms       none, stock, and the step path over one source
exactness  bits of our rows against the stock kernel's
run        puts them together and counts
"""
