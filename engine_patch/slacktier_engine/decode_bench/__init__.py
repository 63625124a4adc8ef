# SPDX-License-Identifier: Apache-2.0
"""`slacktier bench decode`: one rank of a V4.1-like decode step in a captured graph, with and without lookups.

workload     trace -> decode steps and the prefills between them; drawn: steps with a forced hit rate (numpy only)
cells        what is measured: parsed from the command line (standard library only)
device       graphs, instants and pinned memory: a GPU's, or the CPU's to test the bench
table        the rows, twice: as the engine's pinned table and as SlackTier's pages; regions: on zram, disk, behind TCP
stock        the engine's own kernels, loaded by path
compute      40 layers of GEMMs with weight traffic, as many as the windows ask for
arms         none, stock, the step path over one source, on-demand
exactness    bits of our rows against the stock kernel's
measure      arms taking turns, and what the CPU threads recorded; run: puts them together
extend, narrow_rows, probe_check, checks   the parts beside the cells
ranks        a process per rank; balance: how evenly a cut loads them
"""
