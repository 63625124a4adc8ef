# SPDX-License-Identifier: Apache-2.0
"""The Locust process. Importing these modules imports Locust, which patches sockets and sleeps to be gevent's.

One path for one process and for many: users sit at a `Seat` in whichever process Locust spawned them, the master (or
the only process) has the `Desk` that deals sessions out and collects records. They talk in Locust's own messages, which
a local runner delivers to itself.
"""
