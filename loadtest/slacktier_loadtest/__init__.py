# SPDX-License-Identifier: Apache-2.0
"""Load tests: what a table placement costs a client of an OpenAI-compatible server, in TPOT, TTFT and total time.

script     what is sent: sessions of requests, fixed before anything runs
workload   from traces, conversations or the built-in text to scripts
client     one request over a blocking socket, which gevent makes cooperative
generator  the Locust process that sends; the only part that imports Locust, and with it gevent's patches
handle     that process as its parent sees it
scenario   what to compare, from YAML
arms       placements and servers by name
servers    the servers that a run starts itself, and the calls that switch placements
compare    arms in shuffled blocks
figures    records -> figures per arm; bootstrap: how sure they are; forecast: what the window rule says
faults     what makes a run's figures void
document, table, page, plots   the report
"""
