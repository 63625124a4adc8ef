# SPDX-License-Identifier: Apache-2.0
"""`slacktier demo`: the main job on one machine, from real text to a report.

settings, driver                          what to run, and what follows what
sessions, rendering                       turns of tokens, and the requests that replay them
stdlib_text, conversations, workloads     where sessions come from
tables, probe, limits                     scaled tables, what the disk can do, how much a block can hold
arms, schedule, server, traffic           placements, their order, the server, users in a closed loop
server_report, results                    one block's figures, an arm's figures
placement                                 read models, the window rule's question and its answer
clock, clock_check, sweep                 checks of the row cache and of more rows
document, figures, page, console          report.json, report.html, the terminal
"""
