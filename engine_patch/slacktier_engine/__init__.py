# SPDX-License-Identifier: Apache-2.0
"""The SGLang plugin. Nothing heavy is imported here."""
