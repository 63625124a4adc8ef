# SPDX-License-Identifier: Apache-2.0
"""A model for SGLang to load from outside its tree: SGLANG_EXTERNAL_MODEL_PACKAGE=small_engram."""
