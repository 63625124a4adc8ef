# SPDX-License-Identifier: Apache-2.0
"""Around decide(): reading plan files, what-if cases, the figures of the paper, tables and the HTML page."""
