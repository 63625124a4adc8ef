# SPDX-License-Identifier: Apache-2.0
"""The online cache split on recorded sessions whose mix changes half way: `slacktier bench split`."""
