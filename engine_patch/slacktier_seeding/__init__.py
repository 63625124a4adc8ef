# SPDX-License-Identifier: Apache-2.0
"""Decode seeding: a request's rows go from its prefill instance's cache to its decode instance's, past the tier.

Prefill side: `store` keeps them under the request's bootstrap room, `server` sends them. Decode side: `client` pulls
them, `seeder` fills the cache before the first decode step, within a limit of time.
"""
