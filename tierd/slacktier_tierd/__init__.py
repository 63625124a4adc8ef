# SPDX-License-Identifier: Apache-2.0
"""The tier service: it stages, verifies and serves the tables' copies."""
