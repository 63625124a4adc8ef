# SPDX-License-Identifier: Apache-2.0
"""Miss curves and reuse figures of a trace, for `slacktier characterize`.

arguments  the command line's lists, checked
corpus     which sessions are measured, learned from, held out
schedule   in which order a server with many sessions uses the tokens
sampling   which rows are looked at, and how a count of them stands for all
lookups    rows of a layer, renamed to keys
policies   cache policies x cache sizes
reuse      distinct rows, reuse within sessions, rows never seen in other sessions
study      one whole characterization;  results: what it found;  progress: how far it is
report     tables, JSON;  plots: figures
"""
