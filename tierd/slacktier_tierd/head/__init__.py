# SPDX-License-Identifier: Apache-2.0
"""The head of tierd: the API, its state, and the loop that makes what is wanted so."""
