# SPDX-License-Identifier: Apache-2.0
"""The `slacktier` command: the one place where the parts meet."""
