# SPDX-License-Identifier: Apache-2.0
"""`slacktier demo`: the main job on one machine, from real text to a report.

sessions        turns of tokens, and the requests that replay them
stdlib_text     default workload: an agent reading the Python standard library
conversations   OpenAI-style JSONL -> sessions
trace           token files (.npz) -> sessions
clock           plain CLOCK simulation, the yardstick of the row cache
"""
