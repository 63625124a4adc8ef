# SPDX-License-Identifier: Apache-2.0
"""A serving instance's side of tierd: says what it needs, gets its replicas, follows changes, reports.

The standard library, pydantic and slacktier_native only, so that any engine's process can load it; its metrics page,
`families`, takes the Prometheus client as well.
"""
